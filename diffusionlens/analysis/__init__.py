"""Analysis: diagnostics of patch tokens and attention, and the one pass that feeds them all."""
