"""Tables, figures and pages, made from scores and predictions only."""
