"""Predictions: values, validation, files."""
