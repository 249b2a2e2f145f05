"""Design of a sweep: its spec, its points, and the checks before it is submitted."""
