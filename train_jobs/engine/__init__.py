"""The training engine: loop, precision, distribution, checkpoints, metrics. It knows nothing of BERT."""
