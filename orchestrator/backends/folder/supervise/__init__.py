"""Watching a run in a folder until it ends."""
