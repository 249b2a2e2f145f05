"""Which trials go on: pure functions of reports."""
