"""Runs on this machine: a supervisor process for each run, torchrun's agent below it, the ranks below that."""
