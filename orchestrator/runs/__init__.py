"""Status, results, differences and lineage of runs, whichever backend runs them."""
