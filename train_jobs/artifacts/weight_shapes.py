"""Shapes of a model's weights against those that its config.json states, before memory is allocated for either.

The header of a safetensors file is read without torch, so the plan on the laptop and the job make the same check. A
folder with a false config.json, whatever its origin, must not make a reader allocate a matrix of terabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

Shapes = Mapping[str, Sequence[int]]
"""Name of a tensor -> its shape."""
_LAYER = re.compile(r"(?:bert\.)?encoder\.layer\.(\d+)\.")
_LISTED = 3  # tensors listed; a wrong width concerns nearly all
# Name of a tensor without the prefix `bert.` -> the keys of config.json that are its shape. `{}`: number of a layer.
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": ("vocab_size", "hidden_size"),
    "embeddings.position_embeddings.weight": ("max_position_embeddings", "hidden_size"),
    "embeddings.token_type_embeddings.weight": ("type_vocab_size", "hidden_size"),
}
_LAYERS = {
    "encoder.layer.{}.attention.self.query.weight": ("hidden_size", "hidden_size"),
    "encoder.layer.{}.intermediate.dense.weight": ("intermediate_size", "hidden_size"),
    "encoder.layer.{}.output.dense.weight": ("hidden_size", "intermediate_size"),
}


def read_shapes(path: Path) -> Shapes:
    """Return the shapes of a safetensors file; only its header is read.

    Raises:
        SafetensorError: it is not such a file, or is damaged.
        OSError: it is missing or cannot be read.
    """
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_slice(name).get_shape() for name in [*file.keys()]}


def stated_shape_problems(path: Path, sizes: Mapping[str, float]) -> list[str]:
    """Return how a safetensors file contradicts the config.json in its folder; damage is left to its loader.

    Args:
        path: the file of weights.
        sizes: see `shape_problems`.
    """
    try:
        return shape_problems(path, read_shapes(path), sizes)
    except (SafetensorError, OSError):
        return []


def shape_problems(path: Path, shapes: Shapes, sizes: Mapping[str, float]) -> list[str]:
    """Return how weights contradict the config.json in their folder: tensor, both shapes and file.

    Args:
        path: the file of weights, for messages.
        shapes: its shapes.
        sizes: keys of config.json with their values or defaults, `vocab_size` among them. Missing tensors are left to
            the loader of the weights.
    """
    found = list(_problems(path, shapes, sizes))
    return found[:_LISTED] + ([f"and {len(found) - _LISTED} more tensors"] if len(found) > _LISTED else [])


def _problems(path: Path, shapes: Shapes, sizes: Mapping[str, float]) -> Iterator[str]:
    saved = {name.removeprefix("bert."): list(shape) for name, shape in shapes.items()}
    numbers = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    if numbers and len(numbers) != sizes["num_hidden_layers"]:
        stated = f"num_hidden_layers {sizes['num_hidden_layers']}"
        yield f"{path}: encoder.layer has {len(numbers)} layers, but config.json states {stated}"
    expected = dict(_EMBEDDINGS)
    for name, keys in _LAYERS.items():
        expected |= {name.format(number): keys for number in sorted(numbers)}
    for name, keys in expected.items():
        need = [sizes[key] for key in keys]
        if name in saved and saved[name] != need:
            yield f"{path}: {name} has the shape {saved[name]}, but config.json states {need}: {', '.join(keys)}"
