"""Tokenization: from text to sentences, words and token ids."""
