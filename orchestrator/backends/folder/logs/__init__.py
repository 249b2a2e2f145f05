"""Log lines of a run in a folder."""
