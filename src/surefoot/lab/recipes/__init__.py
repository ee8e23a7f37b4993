"""Everything that decides a network's weights, as values."""
