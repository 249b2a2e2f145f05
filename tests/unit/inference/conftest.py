"""Small models saved by transformers, each with a head and with weights that distinguish words."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from drawn_texts import PIECES, sentences

from train_jobs import predict
from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config.predict import PredictConfig

POSITIONS = 32

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a factory of model folders: `saved("BertForMaskedLM", num_labels=3)`."""
    root = tmp_path_factory.mktemp("saved")
    vocabulary = root / "vocab.txt"
    vocabulary.write_text("\n".join(PIECES) + "\n")
    made: dict[str, Path] = {}

    def save(kind: str, **settings: Any) -> Path:
        key = kind + json.dumps(settings, sort_keys=True)
        if key not in made:
            torch.manual_seed(zlib.crc32(key.encode()))  # the same weights in any order of tests
            config = transformers.BertConfig(
                vocab_size=len(PIECES),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=POSITIONS,
                initializer_range=0.3,
                **settings,
            )
            folder = root / str(len(made))
            getattr(transformers, kind)(config).save_pretrained(folder)
            tokenizer = transformers.BertTokenizer(vocab=str(vocabulary), model_max_length=POSITIONS)
            tokenizer.save_pretrained(folder)
            made[key] = folder
        return made[key]

    return save


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that predicts in fp32: `run(model, input, **keys)` -> the rows of predictions.jsonl."""

    def start(model: Path, source: Path, **keys: Any) -> list[dict[str, Any]]:
        tree = {"model": str(model), "input": str(source), "batching": {"precision": "fp32"}, **keys}
        config = build(PredictConfig, merge([ConfigLayer("test", tree)]))
        predict.predict(config, output=tmp_path / "out", device="cpu")
        return [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]

    return start


@pytest.fixture
def texts() -> list[str]:
    """Return 25 texts."""
    return sentences(25)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[[list[dict[str, Any]]], Path]:
    """Return a function that writes rows to a JSON Lines file."""

    def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
