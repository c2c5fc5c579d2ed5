"""Semantic diffusion, measured by intervention: what patches know of an object that is not at their place."""
