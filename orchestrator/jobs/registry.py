"""Registry."""

from __future__ import annotations

from orchestrator.jobs.finetune.spec import FinetuneSpec
from orchestrator.jobs.predict.spec import EvaluateSpec, PredictSpec
from orchestrator.jobs.prepare.spec import PrepareSpec
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.specs.job import MODEL, Kind
from train_jobs.artifacts.layers import FINETUNE_PRESETS, PREDICT_PRESETS, PREPARE_PRESETS, PRESETS
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM

KINDS = {
    "pretrain": Kind(PretrainSpec, PRESETS, "text", starts=(INIT_FROM, PHASE_FROM), stores=True),
    "prepare": Kind(PrepareSpec, PREPARE_PRESETS, "text", gpus=False, stores=True),
    "finetune": Kind(FinetuneSpec, FINETUNE_PRESETS, "tasks", starts=(INIT_FROM,)),
    "evaluate": Kind(EvaluateSpec, PREDICT_PRESETS, "files", starts=(MODEL,)),
    "predict": Kind(PredictSpec, PREDICT_PRESETS, "files", starts=(MODEL,)),
}
