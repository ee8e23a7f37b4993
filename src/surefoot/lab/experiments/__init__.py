"""Methods, experiments, their plans and results."""
