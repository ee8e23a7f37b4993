"""Metrics and temperatures of files larger than memory. Numpy only."""
