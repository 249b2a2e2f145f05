"""Jobs: their records, their way through the statuses, and the processes that run them for real."""
