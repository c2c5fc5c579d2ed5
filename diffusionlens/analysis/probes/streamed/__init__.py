"""Probing from a stream of random crops, DINOv2's protocol: nothing is kept, every forward feeds all heads."""
