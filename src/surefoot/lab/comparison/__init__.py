"""Methods compared over runs: means, paired tests, marks."""
