"""The scripts behind every figure of the README and the documentation."""
