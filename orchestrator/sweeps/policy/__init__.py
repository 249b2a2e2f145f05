"""Early termination of trials and limits of sweeps: pure functions of records and reports."""
