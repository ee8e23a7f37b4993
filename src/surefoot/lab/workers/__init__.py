"""Processes and Ray tasks that train networks."""
