"""Named entity recognition: a tag for each word, as a task of the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from train_jobs.config import DataError, ModelConfig
from train_jobs.config.finetune import ExamplesConfig, FinetuneConfig
from train_jobs.config.tasks import NER, TASKS
from train_jobs.engine.runtime.distributed import World
from train_jobs.evaluation.scored_rows import ScoredRows
from train_jobs.models.bert.task_heads import BertForTokenClassification, Finetuned, class_loss
from train_jobs.readers.tables import official_path
from train_jobs.tasks.entities.conll import (
    Sentences,
    conll_text,
    entity_intervals,
    entity_rows,
    entity_scores,
    make_pieces,
    piece_labels,
    read_conll,
    sentence_ids,
    tag_names,
)
from train_jobs.tasks.finetuning import FinalEvaluation, Finetuning, Floats, TokenizedTask
from train_jobs.tasks.sequences import IGNORED, Ints, TaggedRows

FILES = {split: file.paths for split, file in TASKS[NER].files.items()}
"""Split -> names of its file in a folder of CoNLL-2003."""


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences of a file, and their sequences."""

    sentences: Sentences
    rows: TaggedRows
    """Targets at the first piece of each word."""
    firsts: Ints
    """[words] number of each word's first token, counted over all rows."""

    @classmethod
    def encode(
        cls, sentences: Sentences, names: tuple[str, ...], tokenizer: Tokenizer, *, max_length: int
    ) -> TaggedSentences:
        """Encode the sentences of a file."""
        pieces = list(make_pieces(sentences.words, tokenizer, max_length=max_length))
        ids = [np.array(one.input_ids, np.int64) for one in pieces]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        begins = np.cumsum(lengths) - lengths
        starts = [np.array(one.starts, np.int64) for one in pieces]
        firsts = np.concatenate([begin + start for begin, start in zip(begins, starts, strict=True)])
        targets = np.full(lengths.sum(), IGNORED, np.int64)
        if sentences.tags:
            labels = [piece_labels(one, sentences.tags[one.sentence], names) for one in pieces]
            targets = np.concatenate([np.array(one, np.int64) for one in labels])
        return cls(sentences, TaggedRows(ids, lengths, targets), firsts)


@dataclass(frozen=True, kw_only=True)
class Words(TokenizedTask):
    """Sentences whose words have tags."""

    sets: dict[str, TaggedSentences]
    """train, dev, and test if there is one."""

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Words:
        """Read and encode the rows; see `train_jobs.tasks.replicates.read_task`."""
        files = read_sets(config.data)
        names = tag_names(files["train"])
        sets = {
            name: TaggedSentences.encode(one, names, tokenizer, max_length=config.max_length)
            for name, one in files.items()
        }
        notes = [note for one in files.values() for note in one.notes]
        return cls(config=config, rows=sets["train"].rows, labels=names, notes=notes, sets=sets)

    def row_identities(self) -> dict[str, list[str]]:
        files = {name: one.sentences for name, one in self.sets.items()}
        return {name: sentence_ids(one.words, one.tags or [[]] * len(one)) for name, one in files.items()}

    def describe(self) -> list[str]:
        counts = (
            f"{name} {len(one.firsts):,} words in {len(one.sentences):,} sentences" for name, one in self.sets.items()
        )
        return [
            f"task       {self.config.task}: tags {', '.join(self.labels)}; scored by F1 of entities",
            f"rows       {', '.join(counts)}; sequences of up to {self.config.max_length} tokens",
        ]

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        return BertForTokenClassification(shape, rows, len(self.labels))

    def training(self, model: Finetuned, *, seed: int, world: World) -> Tagging:
        return Tagging(model, self, seed=seed, world=world)


def read_sets(data: ExamplesConfig) -> dict[str, Sentences]:
    """Read the sentences of train, of dev, and of test if there is one.

    Raises:
        DataError: a file is missing, or has lines that cannot be used, or tags without training data: each with its
            line.
    """
    columns: dict[str, Any] = {"word_column": data.word_column, "tag_column": data.tag_column}
    train = read_conll(data.train or _find(data.conll, "train"), **columns)
    known = tag_names(train)
    if known == ("O",):
        raise DataError(
            f"cannot train: {train.path} contains no entity",
            facts={"where": f"{train.path}, column {data.tag_column or 'the last'}"},
            fix="--set data.tag_column=N, counted from 1",
        )
    found = {"train": train, "dev": read_conll(data.validation or _find(data.conll, "dev"), known=known, **columns)}
    test = data.test or (_existing(data.conll, "test") if data.train is None else None)
    if test is not None:
        found["test"] = read_conll(test, known=known, tags_needed=False, **columns)
    return found


def _existing(folder: Path | None, split: str) -> Path | None:
    assert folder is not None, "the configuration requires it"
    return next((folder / name for name in FILES[split] if (folder / name).is_file()), None)


def _find(folder: Path | None, split: str) -> Path:
    assert folder is not None, "the configuration requires it"
    return official_path(
        folder,
        FILES[split],
        need=f"a folder with {' or '.join(FILES[split])}",
        fix="--set data.conll=FOLDER, or name the files in data.train and data.validation",
    )


def _scored_rows(sentences: Sentences, predicted: Sequence[Sequence[str]]) -> ScoredRows:
    return entity_rows(sentences.tags, predicted, sentence_ids(sentences.words, sentences.tags))


class Tagging(Finetuning):
    """Training of a tag for each word, at its first piece (Devlin et al. 2019, section 5.3)."""

    def __init__(self, model: Finetuned, task: Words, *, seed: int, world: World) -> None:
        super().__init__(model, task, seed=seed, world=world)
        self._names, self._dev, self._test = task.labels, task.sets["dev"], task.sets.get("test")

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Return the loss of a word, and precision, recall and F1 of entities, of all and by type; score is F1.

        collapsed is 1 if no entity is right.
        """
        return self._measure(micro_batch_size)[0]

    def evaluate_final(self, micro_batch_size: int) -> FinalEvaluation:
        """Return files of words with their gold and predicted tags, and the scores of a test set with tags."""
        metrics, tags = self._measure(micro_batch_size)
        rows = {"dev": _scored_rows(self._dev.sentences, tags)}
        intervals = entity_intervals(rows["dev"])
        files = {"dev.txt": conll_text(self._dev.sentences.words, self._dev.sentences.tags, tags)}
        if self._test is not None:
            gold, found = self._test.sentences.tags, self._predict(self._test, micro_batch_size)[1]
            files["test.txt"] = conll_text(self._test.sentences.words, *([gold] if gold else []), found)
            if gold:
                scores = entity_scores(gold, found)
                metrics |= {f"test_{name}": scores[name] for name in ("precision", "recall", "f1")}
                rows["test"] = _scored_rows(self._test.sentences, found)
                ends = entity_intervals(rows["test"])
                intervals |= {f"test_{name}": ends[name] for name in ("precision", "recall", "f1")}
        return FinalEvaluation(metrics, files, details={"intervals": intervals}, rows=rows)

    def _measure(self, micro_batch_size: int) -> tuple[dict[str, float], list[list[str]]]:
        logits, tags = self._predict(self._dev, micro_batch_size)
        found = entity_scores(self._dev.sentences.tags, tags)
        # Every report must have the same metrics: a type that neither gold nor predictions contain counts as 0.
        types = {f"f1_{name[2:]}": 0.0 for name in self._names if name != "O"}
        targets = torch.from_numpy(self._dev.rows.targets[self._dev.firsts])
        loss = class_loss(torch.from_numpy(logits), targets) / len(targets)
        return {"loss": float(loss), **types, **found, "collapsed": float(found["f1"] == 0)}, tags

    def _predict(self, one: TaggedSentences, micro_batch_size: int) -> tuple[Floats, list[list[str]]]:
        """Return logits, [words, tags], and the tags of each sentence."""
        logits = self._token_logits(one.rows, len(self._names), micro_batch_size)[one.firsts]
        names = np.array(self._names, object)[logits.argmax(1)]
        ends = np.cumsum([len(words) for words in one.sentences.words])
        return logits, [tags.tolist() for tags in np.split(names, ends[:-1])]

    def _loss_sum(self, logits: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return class_loss(logits, targets, self._device_weights)
