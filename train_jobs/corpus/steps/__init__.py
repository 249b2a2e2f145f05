"""The steps of a preparation; each writes a record."""
