"""Formats on disk that `orchestrator` and `train_jobs` share, read without torch."""
