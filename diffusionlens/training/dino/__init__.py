"""DINO itself: student and teacher, the loss, the optimiser, what holds at which step, and one step."""
