"""The driver of a sweep: draws points, submits trials, watches them and reports to the study."""
