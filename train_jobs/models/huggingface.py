"""Weights in and out of Hugging Face's folders: what we train loads in transformers, and what it holds starts a run."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from train_jobs.artifacts.files import sync
from train_jobs.config import ModelConfig, TrainingError
from train_jobs.engine.runtime import storage
from train_jobs.models.bert.encoder import PAD_ID
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.bert.task_heads import Finetuned

Spellings = Sequence[Sequence[int]]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # read where there is no other, and never as code
VOCABULARY = "vocab.txt"

_HIDDEN_ACT = "gelu"
_OPTIONAL = (
    "bert.pooler.",
    "cls.predictions.",
    "cls.seq_relationship.",
    "classifier.",
    "qa_outputs.",
)  # heads: a folder has all of one or none of it
FINETUNED_HEADS = ("classifier.", "qa_outputs.")  # what they predict is for their folder's labels to say
_ENCODER = ("embeddings.", "encoder.", "pooler.")  # how names start in the folder of a model without heads
_BIAS = "cls.predictions.bias"
_ROWS_OF_VOCABULARY = {"bert.embeddings.word_embeddings.weight", _BIAS}
_NEVER = -40.0  # as a logit too little for fp32 to notice in a softmax, and no weight in LAMB's norm of the bias
_DERIVED = {"bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
_LISTED = 5  # names spelled out in an error


def export(
    model: torch.nn.Module,
    folder: Path,
    *,
    config: ModelConfig,
    vocab_size: int,
    vocabulary: Path,
    lowercase: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
    describe: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Writes a folder that `from_pretrained` of the model's class and of `AutoTokenizer` load offline.

    The folder appears whole: it is written under another name beside its place, then renamed; an older export there is
    replaced.

    Args:
        model: the weights; written as fp32, the decoder not apart from the embedding table that it is.
        folder: where to.
        config: shape of the model.
        vocab_size: rows of the embedding table, padding rows included.
        vocabulary: the vocab.txt that the model was trained with.
        lowercase: whether text was lower-cased and stripped of accents.
        more: what config.json says otherwise than for BERT.
        describe: called with the folder before it appears, to write what goes with the model.

    Raises:
        StorageError: the disk is full or read-only; nothing half-written stays.
    """
    partial, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "replaced"))
    with storage.storage_errors(folder, "the export", partial=partial):
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / CONFIG).write_text(json.dumps({**_config_document(config, vocab_size), **more}, indent=2) + "\n")
        save_file(_host_tensors(model), partial / WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(vocabulary, partial / VOCABULARY)
        _write_tokenizer(partial, lowercase=lowercase, longest=config.max_position_embeddings)
        describe(partial)
        for path in partial.iterdir():
            sync(path)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def load_weights(
    model: BertForPreTraining | Finetuned,
    folder: Path,
    *,
    pieces: int = 0,
    words: Spellings = (),
    leave: tuple[str, ...] = FINETUNED_HEADS,
) -> list[str]:
    """Copies the weights of a Hugging Face folder into `model`, in place.

    Names may lack the prefix `bert.` (a model without heads) and may have TensorFlow's gamma and beta for LayerNorm.
    Pooler and pretraining heads may be absent; heads of other tasks are left aside. The folder's vocabulary may have
    fewer rows than the model's table if they differ by nothing but padding: padding rows then are as they were and,
    where the folder has a language model's head, never predicted, so that losses are those of the folder's model.

    Args:
        model: of the folder's shape.
        folder: holds config.json and model.safetensors, or else pytorch_model.bin.
        pieces: pieces of the folder's vocabulary; needed with `words`.
        words: the model's vocabulary has these behind the folder's, see `with_words`.
        leave: tensors whose names begin so are as if the folder had none of them.

    Returns:
        Names of the model's tensors that the folder does not hold; these stay as they were.

    Raises:
        TrainingError: a file is missing or cannot be read, or the folder's model is not of this shape. The model is
            then as it was.
    """
    _check_settings(folder, model.config)
    found = {_our_name(name): tensor for name, tensor in _read_tensors(folder).items()}
    found = {name: tensor for name, tensor in found.items() if not name.startswith(leave)} if leave else found
    if words:
        found |= {name: with_words(found[name], pieces, words) for name in _ROWS_OF_VOCABULARY & found.keys()}
    targets = model.state_dict()
    absent = [name for name in targets if name not in found]
    _check_names(folder, found, targets, absent)
    _check_shapes(folder, found, targets, model.config)
    with torch.no_grad():
        for name in targets.keys() & found.keys():
            targets[name][: len(found[name])].copy_(found[name])
        if _BIAS in found.keys() & targets.keys():
            targets[_BIAS][len(found[_BIAS]) :] = _NEVER
    return absent


def _config_document(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": vocab_size,
        **config.model_dump(exclude={"name", "options", "pad_vocab_to_multiple_of"}),
        "hidden_act": _HIDDEN_ACT,
        "pad_token_id": PAD_ID,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _host_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    return {name: tensor.to("cpu", torch.float32).contiguous() for name, tensor in state.items()}


def _write_tokenizer(folder: Path, *, lowercase: bool, longest: int) -> None:
    from transformers import BertTokenizer  # seconds to import, and only the end of a run needs it

    tokenizer = BertTokenizer(vocab=str(folder / VOCABULARY), do_lower_case=lowercase, model_max_length=longest)
    tokenizer.save_pretrained(folder)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file() and (folder / OLD_WEIGHTS).is_file():
        return _read_old_tensors(folder / OLD_WEIGHTS)
    try:
        return load_file(path)
    except FileNotFoundError:
        raise _no_file(path) from None
    except SafetensorError as problem:
        raise TrainingError(f"cannot read {path}", facts={"why": problem}) from None


def _read_old_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a pickled state; anything else in it is refused, and never run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        state = None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TrainingError(f"cannot read {path}", facts={"why": "it is torn, or holds more than tensors by name"})
    return state


def _our_name(name: str) -> str:
    """The name in our state of a tensor of a Hugging Face folder, old or new."""
    if name.startswith(_ENCODER):
        name = f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _check_settings(folder: Path, config: ModelConfig) -> None:
    """Compares what the shapes of tensors don't show."""
    path = folder / CONFIG
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _no_file(path) from None
    except ValueError as problem:
        raise TrainingError(f"cannot read {path}", facts={"why": problem}) from None
    needed = {"num_attention_heads": config.num_attention_heads, "hidden_act": _HIDDEN_ACT}
    for key, need in needed.items():
        have = document.get(key, need)
        if have != need:
            raise TrainingError(f"the model of {folder} differs in {key}", facts={"need": need, "have": have})


def _check_names(
    folder: Path, found: Mapping[str, Tensor], targets: Mapping[str, Tensor], absent: Iterable[str]
) -> None:
    whole = [head for head in _OPTIONAL if not any(name.startswith(head) and name in targets for name in found)]
    missing = [name for name in absent if not name.startswith(tuple(whole))]
    if missing:
        raise TrainingError(f"{folder / WEIGHTS} lacks tensors of this model", facts={"missing": _listed(missing)})
    other = tuple(head for head in _OPTIONAL if not any(name.startswith(head) for name in targets))
    surplus = [
        name
        for name in found
        if name.startswith(("bert.", "cls.")) and not name.startswith(other) and name not in targets.keys() | _DERIVED
    ]
    if surplus:
        raise TrainingError(f"{folder / WEIGHTS} holds a larger model", facts={"surplus": _listed(surplus)})


def _check_shapes(
    folder: Path, found: Mapping[str, Tensor], targets: Mapping[str, Tensor], config: ModelConfig
) -> None:
    for name in targets.keys() & found.keys():
        need, have = list(targets[name].shape), list(found[name].shape)
        if name in _ROWS_OF_VOCABULARY and have:
            have[0] = have[0] if have[0] == need[0] else config.padded_vocab_size(have[0])
        if have != need:
            raise TrainingError(
                f"a tensor of {folder / WEIGHTS} is not of this model's shape",
                facts={"where": name, "need": need, "have": list(found[name].shape)},
            )


def _no_file(path: Path) -> TrainingError:
    return TrainingError(f"no such file: {path}", fix="give a folder written by save_pretrained or by an export")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(sorted(names)[:_LISTED]) + more


def with_words(rows: Tensor, pieces: int, spellings: Spellings) -> Tensor:
    """The rows of a vocabulary, and behind them one for each new word: the mean of the pieces it was spelled with.

    So was a vocabulary transferred by Gee et al. 2022 (Fast Vocabulary Transfer for Language Model Compression). Of
    the embedding table and the language model's bias alike, the mean makes a new word's logit the mean of its pieces'
    logits: never the largest one, so the words come in without taking a prediction from those that were learned.

    Args:
        rows: [R, ...] the embedding table, or the bias [R]; rows from `pieces` on are padding, and left out.
        pieces: pieces of the vocabulary so far.
        spellings: for each new word the ids of its pieces.

    Returns:
        [pieces + words, ...] of the same type.
    """
    new = [rows[list(ids)].float().mean(dim=0).to(rows.dtype) for ids in spellings]
    return torch.cat([rows[:pieces], torch.stack(new)]) if new else rows
