"""The kinds of jobs: their specs and plans."""
