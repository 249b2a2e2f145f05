"""The settings of a job by their dotted paths: which there are, of what type, and which is its seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from orchestrator.specs.job import JobSpec
from orchestrator.specs.sweep_spec import Settings

LONGEST_SETTINGS = 60
TEXT = "data.text"  # files, though its type says nothing of paths


def seed_setting(job: JobSpec, seed: int) -> Settings | None:
    """The setting that gives a job its seed; None: it has none."""
    if "seeds" in type(job).model_fields:
        return {"seeds": [seed]}
    return {"train.seed": seed} if setting_type(type(job), "train.seed") is not None else None


def setting_type(model: type[BaseModel], path: str) -> Any:
    """The type of a setting, None if there is none; below a free mapping there is any."""
    annotation: Any = model
    for part in path.split("."):
        if not _is_model(annotation):
            return Any if get_origin(annotation) is dict else None
        if part not in annotation.model_fields:
            return None
        annotation = annotation.model_fields[part].annotation
    return annotation


def is_section(model: type[BaseModel], path: str) -> bool:
    """Whether a setting has others below it: a section, or a free mapping."""
    annotation = setting_type(model, path)
    return get_origin(annotation) is dict or _is_model(annotation)


def names_files(model: type[BaseModel], path: str) -> bool:
    """Whether a setting is the path of something on this machine."""
    return path == TEXT or _has_path(setting_type(model, path))


def _has_path(annotation: Any) -> bool:
    return annotation is Path or any(_has_path(inner) for inner in get_args(annotation))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def settings_text(settings: dict[str, Any], *, longest: int | None = LONGEST_SETTINGS) -> str:
    """Settings in one line, by the last part of each name; numbers with six digits."""
    words = []
    for path, value in settings.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        words.append(f"{path.rsplit('.', 1)[-1]}={shown}")
    text = " ".join(words)
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."
