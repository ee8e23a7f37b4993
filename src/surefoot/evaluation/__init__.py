"""Metrics with intervals, and methods compared."""

RESAMPLES = (
    500  # of the bootstrap, unless given; here so that the command line shows it without loading torch
)
