"""Pages and pictures of sweeps."""
