"""Trained networks on disk; the only package that knows the paths."""
