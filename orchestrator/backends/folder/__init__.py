"""Runs whose folder lies on this machine: what `local` and `debug` have in common."""
