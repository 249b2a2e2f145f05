"""Preparation of a corpus: its spec, plan and estimate."""
