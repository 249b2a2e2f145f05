"""Reports of runs and sweeps: single HTML files without network, script or plotting library."""
