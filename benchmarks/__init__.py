"""The scripts behind every figure of the README and the documentation."""

import train_jobs  # noqa: F401 - before torch, which reads the variable that this sets
