"""Probing from cached tokens: every picture goes through the model once, and heads of every layer learn from the disk."""
