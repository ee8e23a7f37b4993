"""What goes out into the world with a classifier, and what watches over it there."""
