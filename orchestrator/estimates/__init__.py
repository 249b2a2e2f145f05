"""What a job will need, before it runs. Figures are formulas, each with its source, and labelled as estimates."""

from orchestrator.estimates.finetune import FinetuneEstimates, estimate_finetuning
from orchestrator.estimates.predict import PredictEstimates, estimate_prediction
from orchestrator.estimates.prepare import PrepareEstimates, estimate_preparation
from orchestrator.estimates.pretrain import Estimates, estimate

__all__ = [
    "Estimates",
    "FinetuneEstimates",
    "PredictEstimates",
    "PrepareEstimates",
    "estimate",
    "estimate_finetuning",
    "estimate_prediction",
    "estimate_preparation",
]
