"""Handlers of the commands."""
