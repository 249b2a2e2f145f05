"""Charts as SVG, and their styles."""
