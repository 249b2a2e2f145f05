"""Metrics of a run: measured, profiled and written."""
