"""The steps of a preparation; each leaves a record."""
