"""Charts as SVG, and how they look."""
