"""What trains and compares: tasks, networks, training, methods, experiments, the store."""
