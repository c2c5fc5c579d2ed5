"""`similarity`: how alike tokens are, how many directions they take, and what layers have in common."""
