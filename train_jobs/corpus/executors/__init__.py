"""Worker processes and nodes that share the work of a preparation."""
