"""Foundations of every room: errors, paths of the home folder, text and HTML for people, redaction."""
