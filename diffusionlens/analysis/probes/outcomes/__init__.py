"""From finished heads to rows, intervals, warnings and pictures."""
