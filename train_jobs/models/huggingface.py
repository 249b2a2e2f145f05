"""Export of weights and labels as Hugging Face folders, and loading of weights from them."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from train_jobs.artifacts.files import sync
from train_jobs.artifacts.model_trust import PICKLED, pickle_refused
from train_jobs.artifacts.regular_files import SpecialFileError, read_bytes
from train_jobs.artifacts.start_model import (
    ID2LABEL,
    STRETCHED_POSITIONS,
    TRAINED_POSITIONS,
    label_names,
    usable_positions,
)
from train_jobs.artifacts.text_rule import SPLIT_UNSPACED, TextRule
from train_jobs.artifacts.weight_shapes import Shapes, read_shapes, shape_problems
from train_jobs.config import ModelConfig, SpecError, TrainingError, in_shell
from train_jobs.engine.runtime import storage
from train_jobs.models.bert.encoder import PAD_ID
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.bert.task_heads import BertForSequenceClassification, Finetuned

Spellings = Sequence[Sequence[int]]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocab.txt"
TOKENIZER_CONFIG = "tokenizer_config.json"
_GENERAL_TOKENIZER = "PreTrainedTokenizerFast"

_HIDDEN_ACT = "gelu"
# A folder has all tensors of a head or none.
_OPTIONAL = ("bert.pooler.", "cls.predictions.", "cls.seq_relationship.", "classifier.", "qa_outputs.")
FINETUNED_HEADS = ("classifier.", "qa_outputs.")  # their labels are in the folder's config.json
_ENCODER = ("embeddings.", "encoder.", "pooler.")  # prefixes of names in the folder of a model without heads
_TABLE, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_ROWS_OF_VOCABULARY = {_TABLE, _BIAS}
# Bias of padding rows: too small to change an fp32 softmax, but not so large that it dominates LAMB's norm of the bias.
_NEVER = -40.0
_TIED = {"cls.predictions.decoder.weight": _TABLE, "cls.predictions.decoder.bias": _BIAS}
_DERIVED = {"bert.embeddings.position_ids", *_TIED}
REGRESSION_LABELS = ("LABEL_0",)  # Hugging Face's name for the output of a regression
_LISTED = 5  # names listed in an error


class TokenizerFiles(NamedTuple):
    """Tokenizer that a model was trained with."""

    vocabulary: Path
    """vocab.txt."""
    lowercase: bool
    """Whether text was lower-cased."""
    strip_accents: bool | None = None
    """Whether nonspacing marks were dropped. None: as `lowercase`."""
    split_unspaced: bool = False
    """Whether scripts without blanks were cut into characters."""
    trained_positions: int | None = None
    """Tokens of the longest sequences that the model was trained on. None: not known, taken to be all positions."""
    stretched_positions: int | None = None
    """Positions that the trained ones were interpolated to cover. None: they were not."""


def export(
    model: torch.nn.Module,
    folder: Path,
    *,
    config: ModelConfig,
    vocab_size: int,
    tokenizer: TokenizerFiles,
    config_entries: Mapping[str, Any] = MappingProxyType({}),
    describe: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a folder that `from_pretrained` of the model's class and of `AutoTokenizer` loads offline.

    The folder appears complete: it is written under a temporary name in the same folder, then renamed. It replaces an
    older export.

    Args:
        model: model to export; its weights are written as fp32, other numbers as they are, and BERT's decoder, which
            is the embedding table, once.
        folder: folder to write.
        config: shape of the model.
        vocab_size: rows of the embedding table, padding rows included.
        tokenizer: tokenizer that the model was trained with.
        config_entries: entries of config.json that differ from those of a pretrained BERT, such as labels.
        describe: called with the temporary folder before it is renamed, to add files such as the model card.

    Raises:
        StorageError: the disk is full or read-only; partial files are removed.
    """
    partial, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "replaced"))
    with storage.storage_errors(folder, "the export", partial=partial):
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        trained, stretched = tokenizer.trained_positions, tokenizer.stretched_positions
        known = {TRAINED_POSITIONS: trained, STRETCHED_POSITIONS: stretched}
        lengths = {key: value for key, value in known.items() if value is not None}
        document = {**_config_document(config, vocab_size), **lengths, **config_entries}
        (partial / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        save_tensors(_saved_state(model), partial / WEIGHTS)
        shutil.copyfile(tokenizer.vocabulary, partial / VOCABULARY)
        _write_tokenizer(
            partial, tokenizer, longest=usable_positions(config.max_position_embeddings, trained, stretched)
        )
        describe(partial)
        # A rename may reach the disk before the content does: after a power loss the folder would contain empty files.
        for path in partial.iterdir():
            sync(path)
        # Two renames, since a folder cannot replace a folder that is not empty. A kill between them leaves the old
        # export under its temporary name; no half-written one is ever visible.
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the mode of any other new file of its folder.

    Args:
        tensors: contiguous tensors by name.
        path: the file.
    """
    # safetensors always writes mode 0600, which would close the model to the group of a shared home
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(stat.S_IMODE(mode))


def load_weights(
    model: BertForPreTraining | Finetuned,
    folder: Path,
    *,
    pieces: int = 0,
    new_words: Spellings = (),
    ignore: tuple[str, ...] = FINETUNED_HEADS,
    allow_pickle: bool = False,
) -> list[str]:
    """Copy the weights of a Hugging Face folder into `model`, in place.

    Names may lack the prefix `bert.` (a model without heads) and may use TensorFlow's gamma and beta for LayerNorm.
    Pooler and pretraining heads may be missing; heads of other tasks are ignored. The folder's table may lack the
    padding rows of the model's. They then keep their values and, if the folder has a language model head, are never
    predicted, so that losses are those of the folder's model.

    Args:
        model: model of the folder's shape.
        folder: folder with config.json and model.safetensors, or pytorch_model.bin.
        pieces: number of pieces in the folder's vocabulary; needed with `new_words`.
        new_words: pieces of each word that the model's vocabulary has in addition, see `append_words`.
        ignore: prefixes of tensors to ignore.
        allow_pickle: whether pytorch_model.bin, a pickle, is read if there is no model.safetensors.

    Returns:
        Names of the model's tensors that the folder lacks; they keep their values.

    Raises:
        DataError: the weights are a pickle, which is not allowed.
        TrainingError: a file is missing or cannot be read, or the folder's model has another shape. The model is
            unchanged.
    """
    # Everything is checked before the first copy: an error must not leave a model of two mixed sources.
    _check_settings(folder, model.config)
    tensors = _read_tensors(folder, allow_pickle=allow_pickle).items()
    found = {name: tensor for key, tensor in tensors if not (name := _our_name(key)).startswith(ignore)}
    targets = model.state_dict()
    _check_ties(folder, found, targets)
    if new_words:
        found |= {name: append_words(found[name], pieces, new_words) for name in _ROWS_OF_VOCABULARY & found.keys()}
    absent = [name for name in targets if name not in found]
    _check_names(folder, found, targets, absent)
    _check_shapes(folder, found, targets, model.config)
    with torch.no_grad():
        for name in targets.keys() & found.keys():
            rows = targets[name][: len(found[name])] if name in _ROWS_OF_VOCABULARY else targets[name]
            rows.copy_(found[name])
        if _BIAS in found.keys() & targets.keys():
            targets[_BIAS][len(found[_BIAS]) :] = _NEVER
    return absent


def require_shapes(folder: Path, sizes: Mapping[str, float], *, allow_pickle: bool = False) -> None:
    """Require that the weights of a folder have the sizes of its config.json; call it before a model is built.

    Args:
        folder: see `load_weights`.
        sizes: see `weight_shapes.shape_problems`.
        allow_pickle: see `load_weights`.

    Raises:
        DataError: the weights are a pickle, which is not allowed.
        SpecError: the weights have other shapes; `problems` names the tensors.
        TrainingError: a file is missing or cannot be read.
    """
    path = folder / WEIGHTS
    if not path.is_file() and (folder / PICKLED).is_file():
        path = folder / PICKLED
        tensors = _read_tensors(folder, allow_pickle=allow_pickle)
        shapes: Shapes = {name: tensor.shape for name, tensor in tensors.items()}
    else:
        try:
            shapes = read_shapes(path)
        except FileNotFoundError:
            raise _no_file(path) from None
        except (SafetensorError, OSError) as problem:
            raise TrainingError(f"cannot read {path}", facts={"why": problem}) from None
    if problems := shape_problems(path, shapes, sizes):
        fix = f"correct {in_shell(folder / CONFIG)}, or copy the folder again"
        raise SpecError(f"cannot load {folder}: its files contradict each other", problems=problems, fix=fix)


def _saved_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model on the CPU, contiguous; those of floating point as fp32."""
    state, storages = {}, set[int]()
    for name, tensor in model.state_dict().items():
        saved = tensor.to("cpu", torch.float32 if tensor.is_floating_point() else None).contiguous()
        # a user's model may tie weights under two names, which safetensors refuses
        state[name] = saved.clone() if saved.untyped_storage().data_ptr() in storages else saved
        storages.add(saved.untyped_storage().data_ptr())
    return state


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


def _write_tokenizer(folder: Path, files: TokenizerFiles, *, longest: int) -> None:
    from transformers import BertTokenizer  # takes seconds to import, and only an export needs it

    from train_jobs.corpus.tokenize.vocabulary import pre_tokenizer

    tokenizer = BertTokenizer(
        vocab=str(folder / VOCABULARY),
        do_lower_case=files.lowercase,
        strip_accents=None if files.strip_accents == files.lowercase else files.strip_accents,  # None: BERT's own rule
        model_max_length=longest,
    )
    if files.split_unspaced:
        rule = TextRule(files.lowercase, bool(tokenizer.strip_accents), split_unspaced=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer(rule)
    tokenizer.save_pretrained(folder)
    if files.split_unspaced:
        # BertTokenizer would make its own rules from vocab.txt. The general class reads those of tokenizer.json.
        settings = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
        settings |= {"tokenizer_class": _GENERAL_TOKENIZER, SPLIT_UNSPACED: True}
        settings["model_input_names"] = BertTokenizer.model_input_names  # the general class leaves out token types
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _read_tensors(folder: Path, *, allow_pickle: bool) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file() and (folder / PICKLED).is_file():
        if not allow_pickle:
            raise pickle_refused(folder)
        return read_pickled_tensors(folder / PICKLED)
    try:
        return load_file(path)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (SafetensorError, KeyError) as problem:  # KeyError: a type of numbers that torch lacks
        raise TrainingError(f"cannot read {path}", facts={"why": problem}) from None


def read_pickled_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a pickled state dict.

    Raises:
        TrainingError: the file is damaged, or contains anything but tensors by name.
    """
    # Unpickling executes code that the file contains; weights_only admits tensors and plain containers only.
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch's unpickler lets IndexError, KeyError, UnicodeError and others of a damaged file through
        state = None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        raise TrainingError(
            f"cannot read {path}", facts={"why": "the file is damaged, or contains more than named tensors"}
        )
    return state


def _our_name(name: str) -> str:
    """Return our name of a tensor in a Hugging Face folder, including names converted from TensorFlow."""
    if name.startswith(_ENCODER):
        name = f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        return dict(json.loads(read_bytes(path)))
    except FileNotFoundError:
        raise _no_file(path) from None
    except (ValueError, TypeError, RecursionError, SpecialFileError) as problem:
        raise TrainingError(f"cannot read {path}", facts={"why": problem}) from None


def _check_settings(folder: Path, config: ModelConfig) -> None:
    """Check the settings that shapes of tensors do not reveal: the number of heads and the activation.

    Raises:
        TrainingError: one differs from the model's.
    """
    document = _read_config(folder)
    needed = {"num_attention_heads": config.num_attention_heads, "hidden_act": _HIDDEN_ACT}
    for key, need in needed.items():
        have = document.get(key, need)
        if have != need:
            raise TrainingError(f"cannot load {folder}: its model differs in {key}", facts={"need": need, "have": have})


def _check_ties(folder: Path, found: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Check that a decoder, which a file of weights may repeat, is the table and the bias."""
    for name, source in _TIED.items():
        if source in targets and {name, source} <= found.keys() and not torch.equal(found[name], found[source]):
            raise TrainingError(
                f"cannot load {folder / WEIGHTS}: its decoder is not tied to its embeddings",
                facts={"where": name, "need": f"equal to {source}"},
            )


def _check_names(
    folder: Path, found: Mapping[str, Tensor], targets: Mapping[str, Tensor], absent: Iterable[str]
) -> None:
    missing_heads = [head for head in _OPTIONAL if not any(name.startswith(head) and name in targets for name in found)]
    missing = [name for name in absent if not name.startswith(tuple(missing_heads))]
    if missing:
        raise TrainingError(f"cannot load {folder / WEIGHTS}: tensors are missing", facts={"missing": _listed(missing)})
    other = tuple(head for head in _OPTIONAL if not any(name.startswith(head) for name in targets))
    surplus = [
        name
        for name in found
        if name.startswith(("bert.", "cls.")) and not name.startswith(other) and name not in targets.keys() | _DERIVED
    ]
    if surplus:
        raise TrainingError(
            f"cannot load {folder / WEIGHTS}: it contains a larger model", facts={"surplus": _listed(surplus)}
        )


def _check_shapes(
    folder: Path, found: Mapping[str, Tensor], targets: Mapping[str, Tensor], config: ModelConfig
) -> None:
    for name in targets.keys() & found.keys():
        need, have = list(targets[name].shape), list(found[name].shape)
        if name in _ROWS_OF_VOCABULARY and have:
            have[0] = have[0] if have[0] == need[0] else config.padded_vocab_size(have[0])
        if have != need:
            raise TrainingError(
                f"cannot load {folder / WEIGHTS}: a tensor has another shape",
                facts={"where": name, "need": need, "have": list(found[name].shape)},
            )


def _no_file(path: Path) -> TrainingError:
    return TrainingError(f"no such file: {path}", fix="name a folder written by save_pretrained or by an export")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(sorted(names)[:_LISTED]) + more


def append_words(rows: Tensor, pieces: int, spellings: Spellings) -> Tensor:
    """Append a row for each new word to the rows of a vocabulary: the mean of the rows of its pieces.

    Source: Gee et al. 2022, Fast Vocabulary Transfer for Language Model Compression.

    Args:
        rows: [R, ...], the embedding table, or the bias [R]; rows from `pieces` on are padding and dropped.
        pieces: number of pieces in the vocabulary.
        spellings: for each new word the ids of its pieces.

    Returns:
        [pieces + words, ...] of the same dtype.
    """
    # The mean of both embeddings and biases makes a new word's logit the mean of its pieces' logits. So it is never the
    # largest one, and new words take no prediction from learned pieces before they are trained.
    new = [rows[list(ids)].float().mean(dim=0).to(rows.dtype) for ids in spellings]
    return torch.cat([rows[:pieces], torch.stack(new)]) if new else rows


def label_settings(model: Finetuned, labels: Sequence[str]) -> dict[str, Any]:
    """Return the entries of config.json that describe the head.

    Args:
        model: model with its head.
        labels: names of classes or tags in the order of their ids; empty for regression and question answering.

    Returns:
        architectures and, where they apply, problem_type, id2label and label2id.
    """
    settings: dict[str, Any] = {"architectures": [model.hugging_face]}
    if isinstance(model, BertForSequenceClassification):
        settings["problem_type"] = "single_label_classification" if labels else "regression"
        labels = labels or REGRESSION_LABELS
    if labels:
        settings["id2label"] = {str(number): name for number, name in enumerate(labels)}
        settings["label2id"] = {name: number for number, name in enumerate(labels)}
    return settings


def saved_labels(folder: Path) -> list[str]:
    """Return the label names of a folder's model in the order of their ids; empty if its config.json lists none.

    Raises:
        TrainingError: config.json is missing or not JSON, or its labels are not numbered.
    """
    try:
        return label_names(_read_config(folder))
    except ValueError:
        raise TrainingError(
            f"cannot read {folder / CONFIG}", facts={"where": ID2LABEL, "need": '{"0": NAME, "1": NAME, ...}'}
        ) from None


@torch.no_grad()
def load_for_finetuning(
    model: Finetuned, folder: Path, labels: Sequence[str], *, allow_pickle: bool = False
) -> list[str]:
    """Copy the weights of a Hugging Face folder into a model, including the head if it predicts the same labels.

    A head with other labels is ignored even if its size matches: entailment and neutral are unrelated to duplicates.
    A head with the same labels in another order is reordered.

    Args:
        model: model of the folder's shape.
        folder: see `load_weights`.
        labels: see `label_settings`.
        allow_pickle: see `load_weights`.

    Returns:
        Names of the model's tensors that keep their values, including those of a new head.

    Raises:
        TrainingError: see `load_weights`.
    """
    config, have = _read_config(folder), saved_labels(folder)
    wanted = label_settings(model, labels)
    names = list(wanted.get("id2label", {}).values())
    usual = "regression" if len(have) == 1 else "single_label_classification"  # as transformers without problem_type
    same_problem = (config.get("problem_type") or usual) == wanted.get("problem_type", usual)
    same_head = same_problem and config.get("architectures") == wanted["architectures"]
    if not same_head or (names and sorted(have) != sorted(names)):
        return load_weights(model, folder, ignore=FINETUNED_HEADS, allow_pickle=allow_pickle)
    absent = load_weights(model, folder, ignore=(), allow_pickle=allow_pickle)
    if names and have != names and not any(name.startswith(FINETUNED_HEADS) for name in absent):
        assert isinstance(model.classifier, torch.nn.Linear), "only linear heads have labels"
        order = [have.index(name) for name in names]
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter[order])
    return absent
