"""The training loop and what it asks of a task."""
