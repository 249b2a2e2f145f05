"""Raw text -> token store -> training examples -> batches of numpy arrays. No torch in here."""
