"""From a task and a recipe to trained networks and their logits."""
