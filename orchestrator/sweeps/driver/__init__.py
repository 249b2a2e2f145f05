"""Asking for points, submitting, watching, telling."""
