"""Metrics with intervals, and methods compared."""

RESAMPLES = 500  # the bootstrap's default; here so that the command line can show it without loading numpy
MOST_RESAMPLES = 1_000_000
