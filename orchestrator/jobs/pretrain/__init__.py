"""Pretraining: its spec, plan and estimate."""
