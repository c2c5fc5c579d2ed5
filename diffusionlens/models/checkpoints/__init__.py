"""Reading checkpoints: strangers' files, every known naming of weights, our own files and runs, timm's names."""
