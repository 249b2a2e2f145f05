"""BERT in plain PyTorch, its heads and its losses."""
