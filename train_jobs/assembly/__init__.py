"""The parts of a pretraining run, loaded by the names in its configuration, and the start of training."""
