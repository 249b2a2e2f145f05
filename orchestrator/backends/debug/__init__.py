"""Runs inside the process that submits them, so that a breakpoint in a training step opens a debugger."""
