"""BERT in plain PyTorch, its pretraining heads and objective, and weights in and out of Hugging Face's format."""
