"""The pane of glass: what each job needs, validated on the laptop and again in the job. No torch in here."""

from train_jobs.config.errors import (
    ConflictError,
    DataError,
    HangError,
    InternalError,
    OutOfMemoryError,
    PeerError,
    SpecError,
    StorageError,
    TrainingError,
    UserError,
)
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

__all__ = [
    "CardConfig",
    "CheckpointConfig",
    "ConflictError",
    "DataConfig",
    "DataError",
    "FinetuneConfig",
    "HangError",
    "InternalError",
    "OutOfMemoryError",
    "MetricsConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
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
    "UserError",
    "ValidationConfig",
    "WatchdogConfig",
]
