"""Figures: a table or maps in, a matplotlib Figure out. Neither torch nor models are needed here."""
