"""Who does the work of a preparation: processes and nodes."""
