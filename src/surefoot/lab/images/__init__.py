"""Image files to arrays."""
