"""Specs: the sections and sources of values that all kinds of jobs share."""
