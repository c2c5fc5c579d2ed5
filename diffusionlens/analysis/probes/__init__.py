"""Probes: heads trained on frozen tokens, layer by layer and token kind by token kind."""
