"""Pages: a measurement in, a result directory with one page out."""
