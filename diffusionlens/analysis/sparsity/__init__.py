"""`sparsity`: how many tokens a token attends to."""
