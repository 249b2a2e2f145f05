"""Handlers of the commands, imported when their command runs."""
