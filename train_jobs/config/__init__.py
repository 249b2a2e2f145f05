"""The configuration of each kind of job, validated on the laptop and again in the job. Nothing here imports torch."""

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
    "did_you_mean",
    "in_shell",
    "rename_command",
]
