"""Specs: sections and layers of values that all kinds of jobs share."""
