"""The parts that a configuration names, and the start of training."""
