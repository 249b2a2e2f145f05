"""What BERT is fine-tuned on: how tables are read, what a prediction is, how it is scored."""
