"""Azure's smaller services: run history, prices, MLflow."""
