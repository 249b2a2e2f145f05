"""Predictions of a BERT with a head: text in, labels, answers, entities, words or vectors out."""
