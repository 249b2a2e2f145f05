"""Microsoft's schemas of the resources that the double accepts, cut down by `schema.py`, with their licence."""
