"""Defaults that the command line shows without loading what they are for."""

RESAMPLES = 500
