"""Checkpoints: written, listed, verified and pruned."""
