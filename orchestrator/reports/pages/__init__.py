"""Pages and tables of runs."""
