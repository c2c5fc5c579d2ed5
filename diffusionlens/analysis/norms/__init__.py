"""`norms`: how long the tokens are, and which are outliers."""
