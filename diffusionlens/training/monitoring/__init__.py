"""What a run says of itself: the log, means between its lines, warnings of collapse, how sparse attention is."""
