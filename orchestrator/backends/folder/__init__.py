"""Runs whose folder is on this machine: the common part of the backends `local` and `debug`."""
