"""The pane of glass: what each job needs, validated on the laptop and again in the job. No torch in here."""

from train_jobs.config.errors import (
    ConflictError,
    DataError,
    InternalError,
    PeerError,
    SpecError,
    StorageError,
    TrainingError,
    UserError,
)
from train_jobs.config.pretrain import (
    CardConfig,
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ScheduleConfig,
    TrainConfig,
    ValidationConfig,
)

__all__ = [
    "CardConfig",
    "CheckpointConfig",
    "ConflictError",
    "DataConfig",
    "DataError",
    "InternalError",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PeerError",
    "PretrainConfig",
    "ScheduleConfig",
    "SpecError",
    "StorageError",
    "TrainConfig",
    "TrainingError",
    "UserError",
    "ValidationConfig",
]
