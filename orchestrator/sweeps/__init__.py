"""Sweeps: design of the points, the driver of the trials, and policies that stop trials early."""
