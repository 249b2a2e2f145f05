"""Formats on disk that both sides read without torch."""
