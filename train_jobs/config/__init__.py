"""The configuration of each kind of job, validated on the laptop and again in the job. Nothing here imports torch.

Names are loaded on first use: a command that shows a run needs none of the models of jobs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_jobs.config.errors import (
        ConflictError,
        DataError,
        HangError,
        InternalError,
        MachineError,
        OutOfMemoryError,
        PeerError,
        SpecError,
        StorageError,
        TrainingError,
        UserError,
        closest,
        did_you_mean,
        in_shell,
        rename_command,
    )
    from train_jobs.config.fields import Config
    from train_jobs.config.finetune import FinetuneConfig
    from train_jobs.config.predict import PredictConfig
    from train_jobs.config.prepare import PrepareConfig, TextConfig
    from train_jobs.config.pretrain import (
        CardConfig,
        CheckpointConfig,
        DataConfig,
        MetricsConfig,
        ModelConfig,
        ObjectiveConfig,
        OptimizerConfig,
        PretrainConfig,
        ProfileConfig,
        ScheduleConfig,
        TrainConfig,
        ValidationConfig,
        WatchdogConfig,
    )
    from train_jobs.config.trust import TrustConfig

_MODULES = {
    "errors": (
        "ConflictError DataError HangError InternalError MachineError OutOfMemoryError PeerError SpecError StorageError"
        " TrainingError UserError closest did_you_mean in_shell rename_command"
    ),
    "fields": "Config",
    "finetune": "FinetuneConfig",
    "predict": "PredictConfig",
    "prepare": "PrepareConfig TextConfig",
    "pretrain": (
        "CardConfig CheckpointConfig DataConfig MetricsConfig ModelConfig ObjectiveConfig OptimizerConfig"
        " PretrainConfig ProfileConfig ScheduleConfig TrainConfig ValidationConfig WatchdogConfig"
    ),
    "trust": "TrustConfig",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "CardConfig",
    "CheckpointConfig",
    "Config",
    "ConflictError",
    "DataConfig",
    "DataError",
    "FinetuneConfig",
    "HangError",
    "InternalError",
    "MachineError",
    "MetricsConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "OutOfMemoryError",
    "PeerError",
    "PredictConfig",
    "PrepareConfig",
    "PretrainConfig",
    "ProfileConfig",
    "ScheduleConfig",
    "SpecError",
    "StorageError",
    "TextConfig",
    "TrainConfig",
    "TrainingError",
    "TrustConfig",
    "UserError",
    "ValidationConfig",
    "WatchdogConfig",
    "closest",
    "did_you_mean",
    "in_shell",
    "rename_command",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOMES[name]), name)
    return found
