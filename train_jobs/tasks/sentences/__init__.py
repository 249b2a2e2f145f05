"""Tasks of one or two sentences, GLUE among them."""
