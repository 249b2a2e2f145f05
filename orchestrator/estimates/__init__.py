"""What a job will need, before it runs. Figures are formulas, each with its source, and labelled as estimates."""

from orchestrator.estimates.prepare import PrepareEstimates, estimate_preparation
from orchestrator.estimates.pretrain import Estimates, estimate

__all__ = ["Estimates", "PrepareEstimates", "estimate", "estimate_preparation"]
