"""Run history and MLflow, on the data plane's host."""
