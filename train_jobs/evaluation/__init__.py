"""Statistics of scores: bootstrap intervals, scored rows on disk, tests between two models. NumPy alone, no torch."""
