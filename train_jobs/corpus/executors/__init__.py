"""Worker processes and nodes, which share the work of a preparation."""
