"""Training: DINO with softmax or entmax attention, and the runs it leaves."""
