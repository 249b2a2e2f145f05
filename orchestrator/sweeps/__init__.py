"""Sweeps: which points are tried, which trials are stopped early, and Azure's own service for both."""
