"""Reports of runs and sweeps: self-contained HTML files without scripts, network access or a plotting library."""
