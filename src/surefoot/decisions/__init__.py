"""Confidence thresholds and prediction sets: what to do with a prediction."""
