"""A tag for each word: named entities as the engine trains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from train_jobs.config import DataError, ModelConfig
from train_jobs.config.finetune import ExamplesConfig, FinetuneConfig
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.task_heads import BertForTokenClassification, Finetuned, class_loss
from train_jobs.tasks.entities.conll import (
    Sentences,
    conll_text,
    entity_scores,
    make_pieces,
    piece_labels,
    read_conll,
    tag_names,
)
from train_jobs.tasks.finetuning import Conclusion, Finetuning, Floats, balanced_weights
from train_jobs.tasks.sequences import IGNORED, Batch, Ints, Tagged, Targets

FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train.txt", "eng.train"),
    "dev": ("valid.txt", "eng.testa", "dev.txt"),
    "test": ("test.txt", "eng.testb"),
}
"""Split -> names of its file in a folder of CoNLL-2003."""


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of a file, and the sequences that they become."""

    sentences: Sentences
    rows: Tagged
    """Targets are at the first piece of each word."""
    firsts: Ints
    """[words] number of each word's first token, among those of all rows."""

    @classmethod
    def of(
        cls, sentences: Sentences, names: tuple[str, ...], tokenizer: Tokenizer, *, max_length: int
    ) -> TaggedSentences:
        """Splits words into pieces."""
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
        return cls(sentences, Tagged(ids, lengths, targets), firsts)


@dataclass(frozen=True)
class Words:
    """A `train_jobs.tasks.registry.TokenizedTask`: sentences whose words have tags."""

    config: FinetuneConfig
    labels: tuple[str, ...]
    sets: dict[str, TaggedSentences]
    """train, dev, and test if there is one."""

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Words:
        """Everything that training, evaluation and prediction need."""
        sets = read_sets(config.data)
        names = tag_names(sets["train"])
        sentences = {
            name: TaggedSentences.of(one, names, tokenizer, max_length=config.max_length) for name, one in sets.items()
        }
        return cls(config, names, sentences)

    @property
    def sha256(self) -> str:
        """Of what training sees."""
        return self.sets["train"].rows.sha256

    @property
    def notes(self) -> list[str]:
        """What the user should know of the files."""
        return [note for one in self.sets.values() for note in one.sentences.notes]

    def describe(self) -> list[str]:
        """Task and rows, in a line each."""
        counts = (
            f"{name} {len(one.firsts):,} words in {len(one.sentences):,} sentences" for name, one in self.sets.items()
        )
        return [
            f"task       {self.config.task}: tags {', '.join(self.labels)}; scored by F1 of entities",
            f"rows       {', '.join(counts)}; sequences of up to {self.config.max_length} tokens",
        ]

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        """A model with its head, as it is made."""
        return BertForTokenClassification(shape, rows, len(self.labels))

    def training(self, model: Finetuned, *, seed: int, world: World) -> Tagging:
        """What the engine trains."""
        return Tagging(
            *(model, self.labels, self.sets["train"], self.sets["dev"], self.sets.get("test")),
            config=self.config.train,
            seed=seed,
            max_length=self.config.max_length,
            world=world,
        )


def read_sets(data: ExamplesConfig) -> dict[str, Sentences]:
    """The sentences to learn from, to choose by, and to predict if there are any: train, dev, test.

    Raises:
        DataError: a file is missing, has lines that cannot be used, or tags that training does not know: each with its
            line.
    """
    columns: dict[str, Any] = {"word_column": data.word_column, "tag_column": data.tag_column}
    train = read_conll(data.train or _find(data.conll, "train"), **columns)
    known = tag_names(train)
    if known == ("O",):
        raise DataError(
            f"{train.path} has no entity, so there is nothing to learn",
            facts={"where": f"{train.path}, column {data.tag_column or 'the last'}"},
            fix="--set data.tag_column=N, counted from 1",
        )
    found = {"train": train, "dev": read_conll(data.validation or _find(data.conll, "dev"), known=known, **columns)}
    test = data.test or (_existing(data.conll, "test") if data.train is None else None)
    if test is not None:
        found["test"] = read_conll(test, known=known, tags_needed=False, **columns)
    return found


def _existing(folder: Path | None, split: str) -> Path | None:
    assert folder is not None, "the configuration sees to it"
    return next((folder / name for name in FILES[split] if (folder / name).is_file()), None)


def _find(folder: Path | None, split: str) -> Path:
    assert folder is not None, "the configuration sees to it"
    if (found := _existing(folder, split)) is not None:
        return found
    raise DataError(
        f"no such file: {folder / FILES[split][0]}",
        facts={"need": f"a folder with {' or '.join(FILES[split])}", "where": folder},
        fix="--set data.conll=FOLDER, or name the files in data.train and data.validation",
    )


class Tagging(Finetuning):
    """A tag for each word, predicted at its first piece.

    Args:
        names: of the tags in the order of their ids.
        dev: sentences that score it.
        test: sentences to predict.
        more: as of `Finetuning`.
    """

    def __init__(
        self,
        model: Finetuned,
        names: tuple[str, ...],
        train: TaggedSentences,
        dev: TaggedSentences,
        test: TaggedSentences | None,
        **more: Any,
    ) -> None:
        super().__init__(model, train.rows, **more)
        self._names, self._dev, self._test = names, dev, test
        counted = train.rows.targets[train.firsts]
        balanced = self._config.class_weights == "balanced"
        self._weights = balanced_weights(counted, len(names)) if balanced else None
        self._weights_there = None if self._weights is None else torch.from_numpy(self._weights).to(self._world.device)

    def counts(self, batch: Batch) -> list[float]:
        """Words that count, each with the weight of its tag."""
        counted = batch.targets[batch.targets != IGNORED]
        return [float(len(counted) if self._weights is None else self._weights[counted].sum())]

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Loss of a word; precision, recall and F1 of entities, of all and of each type; score is F1.

        collapsed is 1 if no entity is right.
        """
        return self._measure(micro_batch_size)[0]

    def conclude(self, micro_batch_size: int) -> Conclusion:
        """Words with their tags, those that are right and those predicted; scores of the test set if it has tags."""
        metrics, tags = self._measure(micro_batch_size)
        files = {"dev.txt": conll_text(self._dev.sentences.words, self._dev.sentences.tags, tags)}
        if self._test is not None:
            gold, found = self._test.sentences.tags, self._predict(self._test, micro_batch_size)[1]
            files["test.txt"] = conll_text(self._test.sentences.words, *([gold] if gold else []), found)
            if gold:
                scores = entity_scores(gold, found)
                metrics |= {f"test_{name}": scores[name] for name in ("precision", "recall", "f1")}
        return Conclusion(metrics, files)

    def _measure(self, micro_batch_size: int) -> tuple[dict[str, float], list[list[str]]]:
        logits, tags = self._predict(self._dev, micro_batch_size)
        found = entity_scores(self._dev.sentences.tags, tags)
        types = {f"f1_{name[2:]}": 0.0 for name in self._names if name != "O"}
        targets = torch.from_numpy(self._dev.rows.targets[self._dev.firsts])
        loss = class_loss(torch.from_numpy(logits), targets) / len(targets)
        return {"loss": float(loss), **types, **found, "collapsed": float(found["f1"] == 0)}, tags

    def _predict(self, one: TaggedSentences, micro_batch_size: int) -> tuple[Floats, list[list[str]]]:
        """[words, tags] logits, and the tags of each sentence."""
        logits = self._token_logits(one.rows, len(self._names), micro_batch_size)[one.firsts]
        names = np.array(self._names, object)[logits.argmax(1)]
        ends = np.cumsum([len(words) for words in one.sentences.words])
        return logits, [tags.tolist() for tags in np.split(names, ends[:-1])]

    def _loss_sum(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return class_loss(logits, torch.from_numpy(batch.targets).to(logits.device), self._weights_there)

    def _blank_targets(self, shape: tuple[int, int]) -> Targets:
        return np.zeros(shape, np.int64)
