"""Training examples from a token store: order, pairs, masks, batches."""
