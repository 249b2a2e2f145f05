"""Early termination of trials, and limits of sweeps."""
