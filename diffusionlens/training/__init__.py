"""Training: DINO pretraining of ViTs with a choice of attention, from one process to a cluster."""
