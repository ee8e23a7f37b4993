"""Calibrated models, bundles, thresholds and shift monitoring."""
