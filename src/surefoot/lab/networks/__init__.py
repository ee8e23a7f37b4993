"""Networks by name, their heads, and pretrained weights."""
