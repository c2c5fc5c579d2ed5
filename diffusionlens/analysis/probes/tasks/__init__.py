"""The tasks: what heads are asked for, and what counts as right."""
