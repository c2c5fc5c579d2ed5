"""Bench: what the program costs on this machine, in ratios of alternated runs."""
