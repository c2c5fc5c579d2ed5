"""Finding objects without labels: what the last layer's keys and attention say of where an object is."""
