"""Linear heads side by side: what they read, how they are trained, how they are kept."""
