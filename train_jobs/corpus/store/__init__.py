"""The token store: writing, reading, measuring and verifying it."""
