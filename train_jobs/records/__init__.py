"""Lineage, commands and cards of a run."""
