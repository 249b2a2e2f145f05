"""The initial model of training: the folder of a Hugging Face BERT, read without torch.

The model determines shape, vocabulary and case of the run. They override the recipe. Values of the user that contradict
them are reported, key by key, before anything starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from train_jobs.artifacts.csv_tables import SEPARATORS, table_format
from train_jobs.artifacts.files import file_sha256, read_object
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.hub import PREFIX, hub_folder, is_hub_name
from train_jobs.artifacts.layers import ConfigLayer, KeyPath, Merged, dotted, merge
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Lineage, Link, read_lineage
from train_jobs.artifacts.model_tokenizer import VOCABULARY, SavedTokenizer, vocabulary_fix
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.artifacts.text_rule import SPLIT_UNSPACED, TextRule, bert_rule
from train_jobs.artifacts.tracking.model_registry import (
    is_registry_name,
    registry_folder,
    registry_identity,
    registry_of,
)
from train_jobs.artifacts.weight_shapes import stated_shape_problems
from train_jobs.artifacts.word_rules import word_problems
from train_jobs.config import Config, ConflictError, DataConfig, FinetuneConfig, ModelConfig, SpecError, in_shell
from train_jobs.config.pretrain import Positive
from train_jobs.config.tasks import SENTENCES, SPANS, TaskKind, bare, spellings, task_kind, task_names

KEY = "init_from"
STRETCH = "stretch_positions"
WORDS: KeyPath = ("data", "add_tokens")
CONFIG = "config.json"
TRAINED_POSITIONS = "trained_positions"  # keys of config.json in our exports, unknown to transformers
STRETCHED_POSITIONS = "stretched_positions"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that exists is used
SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
ID2LABEL = "id2label"  # key of config.json: id of a class, as text -> its name
BASE_WIDTH, BASE_RATE = 768, 2e-5  # of BERT-base, and its rate in the recipe
# Turc et al. 2019 (arXiv 1908.08962) fine-tune compact BERTs at up to 3e-4; two layers of width 128 that were trained
# on domain text need more (docs/fine-tuning.md).
MOST_RATE = 1e-3
TRAINED_ROWS, LEAST_EPOCHS, MOST_EPOCHS = 10_000, 3, 20  # rows of all epochs; 20: Mosbach et al. 2021 for small sets
NARROW_ROWS, NARROW_EPOCHS = 50_000, 10  # narrow models learn longer (docs/fine-tuning.md, with 5,000 rows)
MOST_COUNTED = 16 << 20  # bytes of a table whose lines are counted
TASK_RECIPE = "of the task "
"""Beginning of the origin of a recipe that the task chose, not the user."""
FIXED = {  # other values are not implemented; without a key, transformers takes these as well
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
}
_HUB_CACHE = re.compile(r"models--(?P<id>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})$")


class InitialModel(Config):
    """Description of a BERT in a Hugging Face folder."""

    folder: Path
    """Path of the folder."""
    shape: dict[str, int | float]
    """Keys of `model` that the weights determine."""
    rows: int
    """Rows of the embedding table."""
    pieces: int
    """Pieces of the vocabulary."""
    vocab_sha256: str
    """SHA-256 of vocab.txt."""
    lowercase: bool | None
    """Whether its tokenizer lower-cases. None: not stated."""
    strip_accents: bool | None
    """Whether its tokenizer drops nonspacing marks. None: if and only if it lower-cases."""
    split_unspaced: bool
    """Whether its tokenizer cuts scripts without blanks into characters."""
    architectures: list[str]
    """`architectures` of config.json."""
    weights: str
    """Name of the file of weights."""

    trained_positions: Positive | None = None
    """Tokens of the longest sequences that it was trained on. None: not stated, taken to be all positions."""
    stretched_positions: Positive | None = None
    """Positions that the trained ones were interpolated to cover. None: they were not."""

    @property
    def sizes(self) -> dict[str, float]:
        """Sizes that config.json states, see `weight_shapes`."""
        return {**self.shape, "vocab_size": self.rows}

    @property
    def positions(self) -> int:
        """Maximum tokens of a sequence."""
        return int(self.shape["max_position_embeddings"])

    @property
    def usable_positions(self) -> int:
        """Tokens of the longest sequences that do not reach positions with random embeddings."""
        return usable_positions(self.positions, self.trained_positions, self.stretched_positions)

    def require_stretchable(self, stretched: int | None) -> None:
        """Refuse an interpolation of positions that this model does not need, or has no room for.

        Args:
            stretched: positions to cover. None: no interpolation.

        Raises:
            SpecError: it is not more than the trained positions, or more than all positions.
        """
        if stretched is None or self.usable_positions < stretched <= self.positions:
            return
        if self.usable_positions == self.positions:
            what, fix = f"all {self.positions} positions of {self.folder} are trained", "leave it out"
        else:
            what = f"{self.folder} has {self.positions} positions, of which {self.usable_positions} are trained"
            fix = f"--set {STRETCH}={self.positions}"
        raise SpecError(f"invalid {STRETCH} {stretched}: {what}", fix=fix)

    @property
    def vocabulary(self) -> Path:
        """Path of vocab.txt."""
        return self.folder / VOCABULARY

    @property
    def identity(self) -> tuple[str, str | None]:
        """Name and version in MLflow's registry, or name and commit on the Hub; else the folder's name and None."""
        if (registered := registry_identity(self.folder)) is not None:
            return registered
        found = _HUB_CACHE.search(self.folder.absolute().as_posix())
        return (found["id"].replace("--", "/"), found["revision"]) if found else (self.folder.resolve().name, None)

    def rule(self, lowercase: bool | None = None) -> TextRule:
        """Return how its text becomes words.

        Args:
            lowercase: the user's choice. None: as the model states, or true.
        """
        known = next((one for one in (lowercase, self.lowercase) if one is not None), True)
        return bert_rule(lowercase=known, strip_accents=self.strip_accents, split_unspaced=self.split_unspaced)

    def stated(self) -> dict[str, bool]:
        """Return the keys of `data` about words that the model decides."""
        if self.lowercase is None:
            return {"split_unspaced": self.split_unspaced}
        return self.rule()._asdict()

    def layer(self) -> ConfigLayer:
        """Return the values that the model determines; they override a recipe."""
        data: dict[str, Any] = {"vocabulary": str(self.vocabulary), **self.stated()}
        return ConfigLayer(f"{KEY} {self.folder}", {"model": dict(self.shape), "data": data})


@dataclass(frozen=True)
class Merge:
    """Merged layers, including that of the model or phase that training starts from.

    Attributes:
        merged: the values.
        source: name of that layer. None: training starts from random weights.
        problems: unusable files of the folder and contradicting values of the user, each with its place.
    """

    merged: Merged
    source: str | None = None
    problems: tuple[str, ...] = ()


def label_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of a model's labels in the order of their ids; empty if its config.json lists none.

    Raises:
        ValueError: its labels are not numbered.
    """
    names = config.get(ID2LABEL) or {}
    try:
        # sorted as numbers: JSON keys are text, and "10" sorts before "2"
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, LookupError) as problem:
        raise ValueError("labels are not numbered") from problem


def stated_positions(config: Mapping[str, Any], file: Path) -> tuple[int | None, int | None]:
    """Return the trained and the stretched positions that a config.json states; None: it does not state them.

    Args:
        config: its content.
        file: its path, for the message.

    Raises:
        SpecError: one is not a positive whole number.
    """
    for key in (TRAINED_POSITIONS, STRETCHED_POSITIONS):
        value = config.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise SpecError(f"{file}: {key} is {value!r}", facts={"need": "a positive whole number, or no such key"})
    return config.get(TRAINED_POSITIONS), config.get(STRETCHED_POSITIONS)


def usable_positions(positions: int, trained: int | None, stretched: int | None) -> int:
    """Return the tokens of the longest sequences that do not reach positions with random embeddings.

    Args:
        positions: all positions of the model.
        trained: positions that were trained. None: not stated, taken to be all.
        stretched: positions that the trained ones were interpolated to cover. None: they were not.
    """
    return min(positions, max(trained or positions, stretched or 0))


def merge_with_words(below: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
    """Merge layers; a file in `data.add_tokens` is replaced by its words.

    Args:
        below: presets, the base first.
        written: layers of the user; later ones override earlier ones.
    """
    merged, problems = _with_words_read(merge([*below, *written]))
    return Merge(merged, problems=problems)


def merge_with_initial_model(below: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
    """Merge layers; the values of the initial model override presets, and the user's values override both.

    A missing folder is ignored, since a run that resumes from its checkpoint does not need it.

    Args:
        below: presets, the base first.
        written: layers of the user; later ones override earlier ones.
    """
    found = merge_with_words(below, written)
    merged, problems = found.merged, found.problems
    named = merged.tree.get(KEY)
    if not isinstance(named, str | Path) or not Path(named).is_dir():
        return found
    where = merged.origin((KEY,))
    try:
        initial = read_initial_model(Path(named))
    except SpecError as failure:
        unusable = (f"{where}: {KEY}: {problem}" for problem in failure.problems)
        return Merge(merged, problems=(*problems, *unusable))
    layer = initial.layer()
    merged = merge([*below, layer, *written])
    data = merged.tree["data"]
    if isinstance(data, dict) and data["vocabulary"] is None:  # the user wrote null, which means no vocabulary file
        vocabulary = ConfigLayer(layer.source, {"data": {"vocabulary": str(initial.vocabulary)}})
        merged = merge([*below, layer, *written, vocabulary])
    merged, _ = _with_words_read(merged)
    contradictions = (*_contradictions(initial, merged), *_unfit_tokens(initial, merged))
    return Merge(merged, layer.source, (*problems, *contradictions))


def merge_for_finetuning(below: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
    """Merge layers of a fine-tuning with defaults that fit its model and its rows, where the user wrote nothing.

    A length is at most that of the pretraining. A model that is narrower than BERT-base gets a higher learning rate,
    and few rows get more epochs, unless the user chose a recipe.

    Args:
        below: presets, lowest first.
        written: the user's layers, lowest first.
    """
    merged = merge([*below, *written])
    task = str(merged.tree.get("task"))
    folder, kind = merged.tree.get(KEY), task_kind(spellings(task_names()).get(bare(task), task)) or SENTENCES
    # Question answering keeps its length: stride and longest question belong to it, so the user must choose.
    if kind is SPANS or not isinstance(folder, str | Path) or not Path(folder).is_dir():
        return Merge(merged)
    try:
        model = read_initial_model(Path(folder))
    except SpecError:  # reported with its facts when the plan reads the model
        return Merge(merged)
    own = merge(written).tree.get("data")
    layers = [*_length_layer(model, merged, kind, own if isinstance(own, dict) else {})]
    if kind is SENTENCES and str(merged.origin(("recipe",))).startswith(TASK_RECIPE):
        layers += _small_layers(model, merged)
    return Merge(merge([*below, *layers, *written]) if layers else merged)


def _length_layer(model: InitialModel, merged: Merged, kind: TaskKind, own: Mapping[str, Any]) -> Iterator[ConfigLayer]:
    """Yield a layer with the trained length of a model, if sequences would be longer."""
    data, trained = merged.tree.get("data"), model.usable_positions
    if not isinstance(data, dict) or own.get("max_length") is not None or merged.tree.get(STRETCH) is not None:
        return
    if model.trained_positions is not None and (data.get("max_length") or kind.max_length) > trained:
        yield ConfigLayer(f"positions trained in {model.folder}", {"data": {"max_length": trained}})


def _small_layers(model: InitialModel, merged: Merged) -> Iterator[ConfigLayer]:
    """Yield a layer with the learning rate of a narrow model, and one with the epochs of a small table."""
    width = int(model.shape["hidden_size"])
    if width < BASE_WIDTH:
        rate = float(f"{min(BASE_RATE * (BASE_WIDTH / width) ** 2, MOST_RATE):.1g}")
        yield ConfigLayer(f"for a width of {width}", {"optimizer": {"learning_rate": rate}})
    data = merged.tree.get("data")
    rows = _table_rows(data) if isinstance(data, dict) else None
    if rows is not None and (epochs := _epochs(rows, width)) > LEAST_EPOCHS:
        yield ConfigLayer(f"for {rows:,} rows", {"train": {"epochs": epochs}})


def _epochs(rows: int, width: int) -> int:
    """Return the default number of epochs, the larger the fewer the rows."""
    epochs = min(TRAINED_ROWS // rows, MOST_EPOCHS)
    return max(epochs, min(NARROW_ROWS // rows, NARROW_EPOCHS)) if width < BASE_WIDTH else epochs


def _table_rows(data: Mapping[str, Any]) -> int | None:
    """Return the rows of the training table; None without one, of a format without lines, or of a large table."""
    path = Path(data["train"]) if isinstance(data.get("train"), str | Path) else None
    form = table_format(path) if path is not None else None
    if path is None or not path.is_file() or form in {None, "parquet"} or path.stat().st_size > MOST_COUNTED:
        return None
    try:
        content = path.read_bytes().rstrip()
    except OSError:  # reported by the plan
        return None
    separated, quoting = form in SEPARATORS, data.get("quoting")
    if separated and (form == "csv" if quoting is None else quoting):
        # A quoted text, such as a note, can have several lines. Doubled quotes only add an empty part between quotes.
        lines = sum(part.count(b"\n") for part in content.split(b'"')[::2]) + 1
    else:
        lines = content.count(b"\n") + 1
    return max(lines - separated, 1)


def is_name(value: Any, folder: Path) -> bool:
    """Return whether the value of a model is a name, of a run (handle, @last, name), on the Hub or in MLflow; no path.

    Args:
        value: value of the key.
        folder: folder that relative paths refer to. A path starts with `.`, `~`, `/` or an existing name in it.
    """
    if not isinstance(value, str) or not value:
        return False
    if "://" in value or value.startswith(("@", PREFIX)) or is_registry_name(value):
        return True
    beginning, *rest = value.split("/")
    return not value.startswith((".", "~", "/")) and len(rest) < 2 and not (folder / beginning).exists()


def resolve_hub_name(written: Merged) -> list[ConfigLayer]:
    """Return a layer that replaces the initial model's name on the Hub or in MLflow by its folder; else no layer.

    Args:
        written: merged layers of the user.

    Raises:
        SpecError: no folder, and no model on the Hub or in the registry, has this name.
    """
    named = written.tree.get(KEY)
    if is_registry_name(named):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bert-orchestrator"
        folder = registry_folder(str(named), registry_of(os.environ, None, None, cache))
        return [ConfigLayer(str(written.origin((KEY,))), {KEY: str(folder)})]
    if not isinstance(named, str) or not is_name(named, Path()) or not is_hub_name(named):
        return []
    where = written.origin((KEY,))
    try:
        return [ConfigLayer(str(where), {KEY: str(hub_folder(named))})]
    except SpecError as failure:
        failure.facts = {"where": f"{where}: {KEY}, which is not a folder either", **failure.facts}
        raise


def read_tuned_model(config: FinetuneConfig, *, section: str = "") -> InitialModel:
    """Read the description of the model of a fine-tuning, and check that its positions suffice.

    Args:
        config: configuration of a single task, or of task glue for what its tasks share.
        section: beginning of the keys in messages, such as "per_task.RTE.".

    Raises:
        SpecError: training cannot start from the model, or sequences are longer than its positions.
    """
    model = read_initial_model(config.init_from)
    model.require_stretchable(config.stretch_positions)
    config.require_positions(model.positions, model.folder, model.usable_positions, section=section)
    return model


def read_initial_model(folder: Path) -> InitialModel:
    """Read the description of a model from its folder.

    Raises:
        SpecError: training cannot start from the model; `problems` lists all reasons.
    """
    config, tokenizer = read_object(folder / CONFIG), SavedTokenizer.read(folder)
    weights, pieces = _weights_file(folder), _pieces(folder / VOCABULARY)
    problems = _unusable(folder, config, tokenizer)
    if weights is None:
        problems.append(f"no weights in {folder}: neither {' nor '.join(WEIGHTS)}")
    if not pieces:
        problems.append(f"no {VOCABULARY} in {folder}{vocabulary_fix(folder)}")
    if config is not None and weights is not None and not problems:
        defaults = ModelConfig().model_dump()  # equal to Hugging Face's; an old config.json omits some keys
        try:
            model = InitialModel(
                folder=folder,
                shape={key: config.get(key, defaults[key]) for key in SHAPE},
                rows=config.get("vocab_size", DataConfig().vocab_size),
                pieces=pieces,
                vocab_sha256=file_sha256(folder / VOCABULARY),
                lowercase=tokenizer.flags.lowercase,
                strip_accents=tokenizer.flags.strip_accents,
                split_unspaced=bool(tokenizer.settings.get(SPLIT_UNSPACED)),
                architectures=config.get("architectures") or [],
                weights=weights.name,
                trained_positions=config.get(TRAINED_POSITIONS),
                stretched_positions=config.get(STRETCHED_POSITIONS),
            )
        except ValidationError as failure:
            where = folder / CONFIG
            problems = [f"{where}: {dotted(error['loc'])}: {error['msg']}" for error in failure.errors()]
        else:
            problems = stated_shape_problems(weights, model.sizes) if weights.name == WEIGHTS[0] else []
            if model.pieces > model.rows:
                rows = f"the embedding table has {model.rows} rows"
                problems.append(f"{model.vocabulary} has {pieces} pieces, but {rows}")
            if not problems:
                return model
    fix = "give a BERT with config.json, vocab.txt and weights: --model RUN, FOLDER or NAME"
    raise SpecError(f"cannot start training from {folder}", problems=problems, fix=fix)


def initial_weights(folder: Path, cache: Path | None = None) -> str | None:
    """Return the SHA-256 of the file of weights in a folder; None without such a file.

    Args:
        folder: folder of a model.
        cache: JSON file of content hashes, see `fingerprints.content_hashes`. None: no cache.
    """
    file = _weights_file(folder)
    return content_hashes([file], cache)[0] if file else None


def _weights_file(folder: Path) -> Path | None:
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def initial_lineage(folder: Path, cache: Path | None = None) -> Lineage:
    """Return the ancestry of the model in a folder: its lineage.json, or one link for a model from elsewhere.

    Args:
        folder: folder of the model.
        cache: see `initial_weights`.

    Raises:
        ConflictError: the lineage does not verify, or belongs to other weights.
        SpecError: training cannot start from the folder.
    """
    model = read_initial_model(folder)
    weights = initial_weights(folder, cache)
    assert weights is not None, "read_initial_model requires the file"
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
            f"the weights of {folder} are not those of its {LINEAGE_FILE}",
            facts={"need": lineage.head.weights or "a completed run", "have": weights, "where": folder / model.weights},
            fix=f"restore the weights, or treat it as a model from elsewhere: rm {in_shell(folder / LINEAGE_FILE)}",
        )
    return lineage


def _with_words_read(merged: Merged) -> tuple[Merged, tuple[str, ...]]:
    """Replace a file in `data.add_tokens` by its words; return the result and the problems of reading the file."""
    data = merged.tree.get("data")
    named = data.get(WORDS[-1]) if isinstance(data, dict) else None
    if not isinstance(named, str):
        return merged, ()
    where = merged.origin(WORDS)
    problems: tuple[str, ...] = ()
    try:
        lines = read_bytes(Path(named)).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        why = "not UTF-8" if isinstance(problem, UnicodeDecodeError) else problem.strerror
        words, problems = [], (f"{where}: {dotted(WORDS)}: cannot read {named}: {why}",)
    else:
        words = [line.strip() for line in lines if line.strip()]
    return replace(merged, tree={**merged.tree, "data": {**merged.tree["data"], WORDS[-1]: words}}), problems


def _unfit_tokens(initial: InitialModel, merged: Merged) -> list[str]:
    """Return a line for each word that cannot be added to the vocabulary."""
    data = merged.tree["data"]
    words = data.get(WORDS[-1]) if isinstance(data, dict) else None
    if not words or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []  # not a list of words: validation reports it
    known = frozenset(initial.vocabulary.read_text(encoding="utf-8", errors="replace").split("\n"))
    where = f"{merged.origin(WORDS)}: {dotted(WORDS)}"
    rule = initial.rule(bool(data.get("lowercase")))
    return [f"{where}: {problem}" for problem in word_problems(words, known, rule)]


def contradictions(merged: Merged, needed: Mapping[tuple[str, str], Any], vocab_sha256: str, start: str) -> list[str]:
    """Return one line per value that contradicts the start of training.

    Args:
        merged: values with sections `model` and `data`.
        needed: section and key -> required value.
        vocab_sha256: SHA-256 of the required vocabulary.
        start: name of the start in messages: initial model or earlier phase.
    """
    problems = [
        f"{merged.origin(path)}: {dotted(path)}: {merged.tree[path[0]][path[1]]}, but the {start} has {value}"
        for path, value in needed.items()
        if not equal(merged.tree[path[0]][path[1]], value)
    ]
    vocabulary = merged.tree["data"].get("vocabulary")
    if vocabulary and Path(str(vocabulary)).is_file() and file_sha256(Path(str(vocabulary))) != vocab_sha256:
        where = merged.origin(("data", "vocabulary"))
        problems.append(f"{where}: data.vocabulary: {vocabulary} is not the vocabulary of the {start}")
    return problems


def _contradictions(initial: InitialModel, merged: Merged) -> list[str]:
    """Return one line per value that contradicts weights or vocabulary of the initial model."""
    model, data = merged.tree["model"], merged.tree["data"]
    if not (isinstance(model, dict) and isinstance(data, dict)):
        return []  # not sections at all: validation reports it
    needed: dict[tuple[str, str], Any] = {("model", key): value for key, value in initial.shape.items()}
    needed |= {("data", key): value for key, value in initial.stated().items()}
    problems = contradictions(merged, needed, initial.vocab_sha256, "initial model")
    step = model.get("pad_vocab_to_multiple_of", ModelConfig().pad_vocab_to_multiple_of)
    if isinstance(step, int) and step > 0 and not _rows_fit(initial, step):
        where = merged.origin(("model", "pad_vocab_to_multiple_of"))
        fitting = next((size for size in (8, 16, 32, 64, 128) if _rows_fit(initial, size)), initial.rows)
        problems.append(
            f"{where}: model.pad_vocab_to_multiple_of: {step} does not result in the {initial.rows} rows of the"
            f" initial model's table; {fitting} does"
        )
    return problems


def equal(written: Any, needed: float) -> bool:
    """Return whether a value from YAML equals a number; YAML 1.1 reads 1e-12 as a string."""
    try:
        return float(written) == float(needed)
    except (TypeError, ValueError):
        return False


def _rows_fit(initial: InitialModel, step: int) -> bool:
    """Return whether the table has our number of rows, or fewer only because it has less padding."""
    ours = ModelConfig(pad_vocab_to_multiple_of=step).padded_vocab_size(initial.pieces)
    return initial.pieces <= initial.rows <= ours


def _unusable(folder: Path, config: dict[str, Any] | None, tokenizer: SavedTokenizer) -> list[str]:
    if config is None:
        return [f"no readable {CONFIG} in {folder}"]
    problems = [
        f"{folder / CONFIG}: {key} is {config[key]!r}, but only {need!r} is supported"
        for key, need in FIXED.items()
        if config.get(key, need) != need
    ]
    return [*problems, *tokenizer.training_problems()]


def _pieces(path: Path) -> int:
    """Return the number of lines of a vocab.txt; 0 without such a file."""
    try:
        content = read_bytes(path)
    except OSError:
        return 0
    return content.removesuffix(b"\n").count(b"\n") + 1 if content else 0
