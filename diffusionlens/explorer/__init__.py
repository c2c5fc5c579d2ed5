"""Token explorer: maps of single pictures stored small, and the part of a page that shows them patch by patch."""
