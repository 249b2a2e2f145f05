"""What a job will need, before it runs. Figures are formulas, each with its source, and labelled as estimates."""
