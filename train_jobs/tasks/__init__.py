"""What is trained: model, objective and data together, as the engine's loop wants them."""
