"""Estimates of what a job will need: formulas, each with its source, and labelled as estimates."""
