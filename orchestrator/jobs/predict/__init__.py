"""Prediction: its spec, plan and estimate."""
