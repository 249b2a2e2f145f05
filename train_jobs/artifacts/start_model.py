"""The model that training starts from: a folder of a Hugging Face BERT, read without torch.

Its shape, its vocabulary and its case are those of the run. They lie over the recipe and under whatever the user wrote;
what the user wrote and they contradict is named, key by key, before anything is started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.hub import hub_folder, is_hub_name
from train_jobs.artifacts.layers import KeyPath, Layer, Merged, dotted, merge
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Lineage, Link, read_lineage
from train_jobs.artifacts.word_rules import unfit_words
from train_jobs.config.base import Config
from train_jobs.config.errors import ConflictError, SpecError
from train_jobs.config.names import in_shell
from train_jobs.config.pretrain import DataConfig, ModelConfig

KEY = "init_from"
WORDS: KeyPath = ("data", "add_tokens")
CONFIG = "config.json"
VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there counts
SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
FIXED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}  # our BERT has no other
_HUB_CACHE = re.compile(r"models--(?P<id>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})$")


class InitialModel(Config):
    """What a folder says of its model."""

    folder: Path
    """Where it lies."""
    shape: dict[str, int | float]
    """The keys of `model` that its weights decide."""
    rows: int
    """Rows of its embedding table."""
    pieces: int
    """Pieces of its vocabulary."""
    vocab_sha256: str
    """Hash of its vocab.txt."""
    lowercase: bool | None
    """Whether its tokenizer lower-cases and strips accents; None: it does not say."""
    architectures: list[str]
    """As its config.json says."""
    weights: str
    """Name of its file of weights."""

    @property
    def positions(self) -> int:
        """The longest sequence that it takes, in tokens."""
        return int(self.shape["max_position_embeddings"])

    @property
    def vocabulary(self) -> Path:
        """Its vocab.txt."""
        return self.folder / VOCABULARY

    @property
    def identity(self) -> tuple[str, str | None]:
        """Its name and its commit on the Hugging Face Hub, if it lies in the Hub's cache; else the folder's name."""
        found = _HUB_CACHE.search(self.folder.absolute().as_posix())
        return (found["id"].replace("--", "/"), found["revision"]) if found else (self.folder.resolve().name, None)

    def layer(self) -> Layer:
        """What it decides, to lie over a recipe."""
        data: dict[str, Any] = {"vocabulary": str(self.vocabulary)}
        if self.lowercase is not None:
            data["lowercase"] = self.lowercase
        return Layer(f"{KEY} {self.folder}", {"model": dict(self.shape), "data": data})


@dataclass(frozen=True)
class Merge:
    """Layers merged, and among them that of what training starts from.

    Attributes:
        merged: the values.
        source: what that layer is called; None without one.
        problems: what of the folder cannot be used, and what the user wrote against it; each with its place.
    """

    merged: Merged
    source: str | None = None
    problems: tuple[str, ...] = ()


def merge_with_initial_model(below: Sequence[Layer], written: Sequence[Layer]) -> Merge:
    """Merges like `merge`, with what the initial model decides between presets and what the user wrote.

    A folder that is not there changes nothing: a run that goes on from its checkpoint can do without it.

    Args:
        below: presets, lowest first.
        written: what the user wrote, lowest first.
    """
    merged, problems = _with_words_read(merge([*below, *written]))
    named = merged.tree.get(KEY)
    if not isinstance(named, str | Path) or not Path(named).is_dir():
        return Merge(merged, problems=problems)
    where = merged.origin((KEY,))
    try:
        initial = read_initial_model(Path(named))
    except SpecError as failure:
        unusable = (f"{where}: {KEY}: {problem}" for problem in failure.problems)
        return Merge(merged, problems=(*problems, *unusable))
    layer = initial.layer()
    merged = merge([*below, layer, *written])
    data = merged.tree["data"]
    if isinstance(data, dict) and data["vocabulary"] is None:  # written as null, which says: none of my own
        vocabulary = Layer(layer.source, {"data": {"vocabulary": str(initial.vocabulary)}})
        merged = merge([*below, layer, *written, vocabulary])
    merged, _ = _with_words_read(merged)
    contradictions = (*_contradictions(initial, merged), *_unfit_tokens(initial, merged))
    return Merge(merged, layer.source, (*problems, *contradictions))


def is_name(value: Any, folder: Path) -> bool:
    """Whether what was written for a model is a name: a run's (a handle, @last, its name), or one on the Hub.

    A path begins with `.`, `~` or `/`, or with what is there in `folder`.
    """
    if not isinstance(value, str) or not value:
        return False
    if "://" in value or value.startswith("@"):
        return True
    beginning, *rest = value.split("/")
    return not value.startswith((".", "~", "/")) and len(rest) < 2 and not (folder / beginning).exists()


def found_on_hub(written: Merged) -> list[Layer]:
    """A layer with the folder of the initial model where the user gave its name on the Hub, as if written there.

    Raises:
        SpecError: neither a folder nor a model on the Hub has that name.
    """
    named = written.tree.get(KEY)
    if not isinstance(named, str) or not is_name(named, Path()) or not is_hub_name(named):
        return []
    where = written.origin((KEY,))
    try:
        return [Layer(str(where), {KEY: str(hub_folder(named))})]
    except SpecError as failure:
        failure.facts = {"where": f"{where}: {KEY}, which is no folder either", **failure.facts}
        raise


def read_initial_model(folder: Path) -> InitialModel:
    """Reads what a folder says of its model.

    Raises:
        SpecError: everything for which training cannot start from it.
    """
    config, tokenizer = _read_json(folder / CONFIG), _read_json(folder / TOKENIZER) or {}
    weights = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    pieces = _pieces(folder / VOCABULARY)
    problems = [*_unusable(folder, config, tokenizer), *_missing(folder, weights, pieces)]
    if config is not None and weights is not None and not problems:
        try:
            model = _describe(folder, config, tokenizer, weights, pieces)
        except ValidationError as failure:
            where = folder / CONFIG
            problems = [f"{where}: {dotted(error['loc'])}: {error['msg']}" for error in failure.errors()]
        else:
            if model.pieces <= model.rows:
                return model
            problems = [f"{model.vocabulary} has {pieces} pieces, the embedding table only {model.rows} rows"]
    raise SpecError(f"training cannot start from {folder}", problems=problems)


def initial_weights(folder: Path, cache: Path | None = None) -> str | None:
    """SHA-256 of the file of weights in a folder; None where there is none.

    Args:
        cache: a JSON file that remembers content hashes, see `train_jobs.artifacts.fingerprints.fingerprint`.
    """
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    return content_hashes([found], cache)[0] if found else None


def initial_lineage(folder: Path, cache: Path | None = None) -> Lineage:
    """The ancestry of the model in a folder: its own lineage.json, or one link that says it came from elsewhere.

    Args:
        folder: of the model.
        cache: as of `initial_weights`.

    Raises:
        ConflictError: the lineage does not verify, or is not that of these weights.
        SpecError: training cannot start from the folder.
    """
    model = read_initial_model(folder)
    weights = initial_weights(folder, cache)
    assert weights is not None, "its file was there a moment ago"
    lineage = read_lineage(folder / LINEAGE_FILE)
    if lineage is None:
        name, revision = model.identity
        facts = ExternalFacts(
            weights=weights,
            file=model.weights,
            architectures=model.architectures,
            vocabulary=model.vocab_sha256,
            revision=revision,
        )
        return Lineage(links=(Link.make("external", name, facts),))
    if lineage.head.weights != weights:
        raise ConflictError(
            f"the weights of {folder} are not those that its {LINEAGE_FILE} tells of",
            facts={"need": lineage.head.weights or "a completed run", "have": weights, "where": folder / model.weights},
            fix=f"put them back, or let it count as a model from elsewhere: rm {in_shell(folder / LINEAGE_FILE)}",
        )
    return lineage


def _with_words_read(merged: Merged) -> tuple[Merged, tuple[str, ...]]:
    """The same with the words themselves where `data.add_tokens` names a file of them; and why that cannot be read."""
    data = merged.tree.get("data")
    named = data.get(WORDS[-1]) if isinstance(data, dict) else None
    if not isinstance(named, str):
        return merged, ()
    where = merged.origin(WORDS)
    problems: tuple[str, ...] = ()
    try:
        lines = Path(named).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        why = "not UTF-8" if isinstance(problem, UnicodeDecodeError) else problem.strerror
        words, problems = [], (f"{where}: {dotted(WORDS)}: cannot read {named}: {why}",)
    else:
        words = [line.strip() for line in lines if line.strip()]
    tree = {**merged.tree, "data": {**merged.tree["data"], WORDS[-1]: words}}
    return Merged(tree, merged.origins), problems


def _unfit_tokens(initial: InitialModel, merged: Merged) -> list[str]:
    """A line for each word that the vocabulary cannot be given."""
    data = merged.tree["data"]
    words = data.get(WORDS[-1]) if isinstance(data, dict) else None
    if not words or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []  # not a list of words at all: validation says so
    known = frozenset(initial.vocabulary.read_text(encoding="utf-8", errors="replace").split("\n"))
    where = f"{merged.origin(WORDS)}: {dotted(WORDS)}"
    return [f"{where}: {problem}" for problem in unfit_words(words, known, lowercase=bool(data.get("lowercase")))]


def _describe(
    folder: Path, config: dict[str, Any], tokenizer: dict[str, Any], weights: str, pieces: int
) -> InitialModel:
    defaults = ModelConfig().model_dump()  # as Hugging Face's: an old config.json leaves some out
    return InitialModel(
        folder=folder,
        shape={key: config.get(key, defaults[key]) for key in SHAPE},
        rows=config.get("vocab_size", DataConfig().vocab_size),
        pieces=pieces,
        vocab_sha256=file_sha256(folder / VOCABULARY),
        lowercase=tokenizer.get("do_lower_case"),
        architectures=config.get("architectures") or [],
        weights=weights,
    )


def _contradictions(initial: InitialModel, merged: Merged) -> list[str]:
    """A line for each key that is not as the weights and the vocabulary need it."""
    model, data = merged.tree["model"], merged.tree["data"]
    if not (isinstance(model, dict) and isinstance(data, dict)):
        return []  # not sections at all: validation says so
    needed = {("model", key): value for key, value in initial.shape.items()}
    if initial.lowercase is not None:
        needed["data", "lowercase"] = initial.lowercase
    problems = [
        f"{merged.origin(path)}: {'.'.join(path)}: {merged.tree[path[0]][path[1]]}, but the initial model has {value}"
        for path, value in needed.items()
        if not equal(merged.tree[path[0]][path[1]], value)
    ]
    vocabulary = Path(str(data["vocabulary"]))
    if vocabulary.is_file() and file_sha256(vocabulary) != initial.vocab_sha256:
        where = merged.origin(("data", "vocabulary"))
        problems.append(f"{where}: data.vocabulary: {vocabulary} is not the vocabulary of the initial model")
    step = model.get("pad_vocab_to_multiple_of", ModelConfig().pad_vocab_to_multiple_of)
    if isinstance(step, int) and step > 0 and not _rows_fit(initial, step):
        where = merged.origin(("model", "pad_vocab_to_multiple_of"))
        fitting = next((size for size in (8, 16, 32, 64, 128) if _rows_fit(initial, size)), initial.rows)
        problems.append(
            f"{where}: model.pad_vocab_to_multiple_of: {step} does not make the {initial.rows} rows of the initial"
            f" model's table; {fitting} does"
        )
    return problems


def equal(written: Any, needed: float) -> bool:
    """Numbers as validation will read them: YAML takes 1e-12 for a text."""
    try:
        return float(written) == float(needed)
    except (TypeError, ValueError):
        return False


def _rows_fit(initial: InitialModel, step: int) -> bool:
    """Whether the table differs from ours by nothing but rows of padding that it lacks."""
    ours = ModelConfig(pad_vocab_to_multiple_of=step).padded_vocab_size(initial.pieces)
    return initial.pieces <= initial.rows <= ours


def _unusable(folder: Path, config: dict[str, Any] | None, tokenizer: dict[str, Any]) -> list[str]:
    if config is None:
        return [f"no {CONFIG} in {folder} that can be read"]
    problems = [
        f"{folder / CONFIG}: {key} is {config[key]!r}, and only {need!r} can be trained"
        for key, need in FIXED.items()
        if config.get(key, need) != need
    ]
    strips = tokenizer.get("strip_accents")
    if strips is not None and strips != tokenizer.get("do_lower_case", True):
        problems.append(
            f"{folder / TOKENIZER}: accents are stripped if and only if text is lower-cased, here they differ"
        )
    if tokenizer.get("tokenize_chinese_chars") is False:
        problems.append(f"{folder / TOKENIZER}: Chinese characters are words of their own, here they are not")
    return problems


def _missing(folder: Path, weights: str | None, pieces: int) -> list[str]:
    problems = []
    if weights is None:
        problems.append(f"neither {' nor '.join(WEIGHTS)} in {folder}")
    if not pieces:
        problems.append(f"no {VOCABULARY} in {folder}{_vocabulary_fix(folder)}")
    return problems


def _vocabulary_fix(folder: Path) -> str:
    """transformers 5 writes the vocabulary into tokenizer.json alone."""
    if not (folder / "tokenizer.json").is_file():
        return ""
    program = "import json, sys; v = json.load(sys.stdin)['model']['vocab']; print(*sorted(v, key=v.get), sep='\\n')"
    return f'; write it with: python -c "{program}" < {folder / "tokenizer.json"} > {folder / VOCABULARY}'


def _pieces(path: Path) -> int:
    """Lines of a vocab.txt; 0 where there is none."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0
    return content.removesuffix(b"\n").count(b"\n") + 1 if content else 0


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none to read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
