"""Sweeps that Azure drives itself."""
