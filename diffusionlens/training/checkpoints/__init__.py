"""What a run leaves on the disk, and going on from it."""
