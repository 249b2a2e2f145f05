"""Tasks that a model trains on: pretraining on text, and fine-tuning on labelled rows."""
