"""The copy of a run in MLflow: its store, its record and its metrics."""
