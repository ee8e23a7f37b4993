"""Has the data shifted? Reference, detectors, checks, their history, accuracy without labels."""
