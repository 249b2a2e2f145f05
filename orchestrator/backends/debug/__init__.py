"""Runs inside the process that submits them, where a breakpoint in the training step stops."""
