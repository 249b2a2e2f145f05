"""From text to words and their numbers."""
