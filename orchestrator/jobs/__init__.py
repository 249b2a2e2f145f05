"""The kinds of jobs: what the user writes, and what will be done."""
