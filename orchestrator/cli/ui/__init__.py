"""Shared by the commands: declarations, completion, output on the terminal."""
