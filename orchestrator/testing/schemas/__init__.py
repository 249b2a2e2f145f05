"""Microsoft's schemas of the resources that the double takes, cut down by `cut.py`; their licence lies beside them."""
