"""Predictors of spans: named entities, and answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding

from train_jobs.config import did_you_mean
from train_jobs.config.predict import AUTO
from train_jobs.config.privacy import value_text
from train_jobs.evaluation.resampling import intervals
from train_jobs.evaluation.scored_rows import SCORED_SET, ScoredRows
from train_jobs.inference.input_windows import ANSWERS, CONTEXT, ID, QUESTION, TAGS, WORDS, SquadReader
from train_jobs.inference.predictor import Predicted, Predictor, Record, rounded
from train_jobs.readers.squad_data import Question
from train_jobs.readers.tables import RowProblems, RowTable
from train_jobs.tasks.entities.conll import (
    Entity,
    entities,
    entity_intervals,
    entity_rows,
    entity_scores,
    make_pieces,
    sentence_ids,
)
from train_jobs.tasks.sequences import TokenBatch, Tokens, join_segments
from train_jobs.tasks.squad.scoring import question_rows, score_v1, score_v2
from train_jobs.tasks.squad.spans import Floats, Prediction, best_window, make_windows, predict, window_spans

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class TaggedWords(NamedTuple):
    """Predicted tags of a row's words."""

    tags: list[str]
    probabilities: list[float]


class TagPredictor(Predictor):
    """Predictor of named entities in texts, or of a tag for each word of a split sentence, at its first piece."""

    @property
    def is_split(self) -> bool:
        """Whether the input is split into words (CoNLL) instead of text."""
        return self.config.form(self.config.input[0]) == "conll"

    def check(self, table: RowTable, problems: RowProblems) -> None:
        if not self.is_split:
            super().check(table, problems)
        for row, tags in enumerate(table.columns.get(TAGS, ())):
            for tag in dict.fromkeys(tags):
                if tag not in self.folder.labels:
                    guess = did_you_mean(tag, self.folder.labels)
                    problems.add(table.where(row), f"unknown tag: {value_text(tag)}{guess}")

    def predict(self, table: RowTable, first: int) -> Predicted:
        if not self.is_split:
            return Predicted(self._of_texts(table.columns[self.config.data.text]), {})
        words = table.columns[WORDS]
        found = self._of_words(words)
        records = [self._sentence_record(*one) for one in zip(words, found, strict=True)]
        score_inputs = {}
        if self.config.evaluate:
            gold = table.columns[TAGS]
            ids = sentence_ids(words, gold)
            score_inputs = {"gold": gold, "predicted": [one.tags for one in found], "rows": ids}
        return Predicted(records, score_inputs)

    def answer(self, record: Record) -> Any:
        found = [{name: one[name] for name in one if name != "probability"} for one in record["entities"]]
        return record.get("tags"), found

    def scores(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, float]:
        gold, predicted = ([tags for one in score_inputs for tags in one[key]] for key in ("gold", "predicted"))
        right = sum(a == b for rows in zip(gold, predicted, strict=True) for a, b in zip(*rows, strict=True))
        return {"accuracy": right / sum(map(len, gold)), **entity_scores(gold, predicted)}

    def score_details(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (rows,) = self.scored_rows(score_inputs).values()
        return {"intervals": entity_intervals(rows)}

    def scored_rows(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, ScoredRows]:
        keys = ("gold", "predicted", "rows")
        gold, predicted, ids = ([value for one in score_inputs for value in one[key]] for key in keys)
        return {SCORED_SET: entity_rows(gold, predicted, ids)}

    def fields(self) -> dict[str, Any]:
        entity = {"type": str, "text": str, "probability": float}
        if not self.is_split:
            return {"entities": [{**entity, "begin": int, "end": int}]}
        return {"words": [str], "tags": [str], "entities": [{**entity, "first": int, "last": int}]}

    def _of_words(self, sentences: Sequence[Sequence[str]]) -> list[TaggedWords]:
        pieces = list(make_pieces(sentences, self.tokenizer, max_length=self.max_length))
        sequences = [Tokens(np.array(one.input_ids, np.int64), len(one.input_ids)) for one in pieces]
        found = [TaggedWords([], []) for _ in sentences]
        for one, (tags, probabilities) in zip(pieces, self.forward.map(sequences, self._tags), strict=True):
            found[one.sentence].tags.extend(self.folder.labels[tags[start]] for start in one.starts)
            found[one.sentence].probabilities.extend(float(probabilities[start]) for start in one.starts)
        return found

    def _of_texts(self, texts: Sequence[str]) -> list[Record]:
        """Return the records of texts."""
        # Long texts in windows that overlap by half, as for SQuAD: each token is predicted where it has the most
        # context, and an entity at the border of one window is inside of another.
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        room = self.max_length - 2
        spans = [window_spans(len(one.ids), room, room // 2) for one in encoded]
        sequences = [
            join_segments(self.cls, self.sep, one.ids[begin:end])
            for one, some in zip(encoded, spans, strict=True)
            for begin, end in some
        ]
        found = iter(self.forward.map(sequences, self._tags))
        records = []
        for text, one, some in zip(texts, encoded, spans, strict=True):
            both: list[npt.NDArray[Any]] = [np.zeros(len(one.ids), dtype) for dtype in (np.int64, np.float32)]
            best = best_window(len(one.ids), some)
            # 1:-1 below leaves out [CLS] and [SEP], so that positions match those of the text without special tokens.
            for number, (begin, end) in enumerate(some):
                mine = best[begin:end] == number
                for whole, part in zip(both, next(found), strict=True):
                    whole[begin:end][mine] = part[1:-1][mine]
            records.append(self._text_record(text, one, *both))
        return records

    def _text_record(self, text: str, one: Encoding, tags: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> Record:
        # a word's tag is that of its first piece, as in training
        starts = [place for place, word in enumerate(one.word_ids) if not place or one.word_ids[place - 1] != word]
        ends = [after - 1 for _, after in pairwise([*starts, len(one.ids)])]

        def described(entity: Entity) -> tuple[str, Record]:
            begin, end = one.offsets[starts[entity.first]][0], one.offsets[ends[entity.last]][1]
            return text[begin:end], {"begin": begin, "end": end}

        names = [self.folder.labels[tags[start]] for start in starts]
        return {"entities": _entity_records(names, probabilities[starts], described)}

    def _sentence_record(self, words: Sequence[str], found: TaggedWords) -> Record:
        def described(entity: Entity) -> tuple[str, Record]:
            return " ".join(words[entity.first : entity.last + 1]), {"first": entity.first, "last": entity.last}

        records = _entity_records(found.tags, found.probabilities, described)
        return {"words": list(words), "tags": found.tags, "entities": records}

    def _tags(self, batch: TokenBatch) -> list[Arrays]:
        """Return the most likely tag of each token, and its probability."""
        best = torch.softmax(self.forward.model(*batch[:4]).float(), -1).max(-1)
        each = zip(best.indices.cpu().numpy(), best.values.cpu().numpy(), batch.lengths.tolist(), strict=True)
        return [(tags[:length], probabilities[:length]) for tags, probabilities, length in each]


def _entity_records(
    tags: Sequence[str], probabilities: Any, described: Callable[[Entity], tuple[str, Record]]
) -> list[Record]:
    """Return the entities of words; `described` adds the text and the place of each."""
    found = []
    for entity in entities(tags):
        # The mean, not the product: otherwise long entities would always have a lower probability than short ones.
        probability = float(np.mean(probabilities[entity.first : entity.last + 1]))
        text, place = described(entity)
        found.append({"type": entity.type, "text": text, "probability": rounded(probability), **place})
    return found


class AnswerPredictor(Predictor):
    """Predictor of answers: spans of a context, or no answer.

    Set `squad` before the first prediction if the input is in SQuAD's format.
    """

    default_length = 384
    squad: Sequence[SquadReader] = ()

    @property
    def threshold(self) -> float | None:
        """Odds above which there is no answer. None: every question has an answer."""
        wanted = self.config.answers.null_threshold
        if wanted != AUTO:
            return wanted
        # SQuAD's version decides for its files, whatever the model was tuned on: 1.1 has no unanswerable question.
        tuned = self.folder.null_threshold
        if not self.squad:
            return tuned
        return (tuned or 0.0) if any(reader.squad.version_2 for reader in self.squad) else None

    def check(self, table: RowTable, problems: RowProblems) -> None:
        if not self.squad:  # its reader has checked every question
            super().check(table, problems)

    def predict(self, table: RowTable, first: int) -> Predicted:
        questions = self._questions(table, first)
        data, answers = self.config.data, self.config.answers
        windows = make_windows(
            questions,
            self.tokenizer,
            max_length=self.max_length,
            stride=data.doc_stride,
            max_query_length=min(data.max_query_length, self.max_length // 2),
        )
        logits = self.forward.map([Tokens(one.input_ids, one.first) for one in windows], self._logits)
        # Windows of all questions go through the model together, sorted by length, and are then sorted by question
        # again.
        mine: list[list[int]] = [[] for _ in questions]
        for number, window in enumerate(windows):
            mine[window.question].append(number)
        found = [
            predict(
                question,
                [windows[number] for number in numbers],
                [logits[number] for number in numbers],
                version_2=self.threshold is not None,
                n_best=answers.n_best,
                max_answer_length=answers.max_answer_length,
            )
            for question, numbers in zip(questions, mine, strict=True)
        ]
        score_inputs: dict[str, Any] = {}
        if self.config.evaluate:
            score_inputs["answers"] = {one.id: one.best for one in found}
            score_inputs["null_odds"] = {one.id: one.null_odds for one in found}
        return Predicted([self._record(one) for one in found], score_inputs)

    def answer(self, record: Record) -> Any:
        return record["answer"], record["begin"]

    def scores(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, float]:
        questions = [question for reader in self.squad for question in reader.squad.questions]
        answers = {key: text for one in score_inputs for key, text in one["answers"].items()}
        if self.threshold is None:
            return score_v1(questions, answers)
        odds = {key: value for one in score_inputs for key, value in one["null_odds"].items()}
        return score_v2(questions, answers, odds, threshold=self.threshold)

    def score_details(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (rows,) = self.scored_rows(score_inputs).values()
        return {"intervals": intervals(rows.resamples())}

    def scored_rows(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, ScoredRows]:
        questions = [question for reader in self.squad for question in reader.squad.questions]
        answers = {key: text for one in score_inputs for key, text in one["answers"].items()}
        if self.threshold is None:
            return {SCORED_SET: question_rows(questions, answers)}
        odds = {key: value for one in score_inputs for key, value in one["null_odds"].items()}
        thresholds = dict.fromkeys(("exact", "f1"), self.threshold)
        return {SCORED_SET: question_rows(questions, answers, odds, thresholds=thresholds)}

    def fields(self) -> dict[str, Any]:
        return {
            **({"id": str} if self.squad else {}),
            "answer": str,
            "begin": int,
            "end": int,
            "probability": float,
            **({} if self.threshold is None else {"null_odds": float}),
            "candidates": [{"text": str, "probability": float, "start_logit": float, "end_logit": float}],
        }

    def _questions(self, table: RowTable, first: int) -> list[Question]:
        if self.squad:
            each = zip(*(table.columns[name] for name in (ID, QUESTION, CONTEXT, ANSWERS)), strict=True)
            return [Question(*values) for values in each]
        asked, about = (table.columns[name] for name in self.text_columns)
        return [
            Question(str(number), question, context, ())
            for number, (question, context) in enumerate(zip(asked, about, strict=True), start=first)
        ]

    def _logits(self, batch: TokenBatch) -> list[tuple[Floats, Floats]]:
        each = self.forward.model(*batch[:4]).float().cpu().numpy()
        return [(one[:length, 0], one[:length, 1]) for one, length in zip(each, batch.lengths.tolist(), strict=True)]

    def _record(self, found: Prediction) -> Record:
        # The candidates have probabilities over the n best answers, including no answer; 0 if the text is not one of
        # them.
        text = found.text(self.threshold)
        probability = next((one["probability"] for one in found.candidates if one["text"] == text), 0.0)
        begin = found.begin if text else None
        return {
            **({"id": found.id} if self.squad else {}),
            "answer": text,
            "begin": begin,
            "end": None if begin is None else begin + len(text),
            "probability": rounded(float(probability)),
            **({} if self.threshold is None else {"null_odds": rounded(found.null_odds)}),
            "candidates": [
                {name: value if isinstance(value, str) else rounded(value) for name, value in one.items()}
                for one in found.candidates
            ],
        }
