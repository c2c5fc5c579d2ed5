"""Is B really better than A? Results of several directories side by side, with differences picture by picture."""
