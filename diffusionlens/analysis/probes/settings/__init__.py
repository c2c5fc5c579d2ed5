"""What can be said of how heads are trained and scored."""
