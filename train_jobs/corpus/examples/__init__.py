"""Examples out of a token store: order, pairs, masks, batches."""
