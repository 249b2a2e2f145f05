"""Points of a sweep."""
