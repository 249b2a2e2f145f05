"""What every kind of job shares: the sections of a spec, and the layers of values that it is made of."""
