"""The token store: read, measured and verified."""
