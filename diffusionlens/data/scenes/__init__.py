"""Built-in procedural pictures whose boxes, masks, depth and labels are exact."""
