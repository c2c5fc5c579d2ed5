"""One reader for every layout of pictures and annotations, and what they share."""
