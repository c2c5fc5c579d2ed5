"""Entmax-1.5 attention."""
