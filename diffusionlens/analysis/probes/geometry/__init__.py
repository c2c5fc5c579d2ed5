"""Where on a picture: crops to learn from, views to be scored on, tokens between grid centres, logits at label size."""
