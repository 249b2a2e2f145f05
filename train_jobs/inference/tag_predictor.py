"""Named entities: of a text with their characters; of sentences whose words are split already, a tag for each word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding

from train_jobs.config.names import did_you_mean
from train_jobs.inference.forward import Batch, Tokens, joined
from train_jobs.inference.predictor import LINES, TABLES, Predicted, Record, Task, rounded
from train_jobs.inference.readers import TAGS, WORDS
from train_jobs.tasks.entities.conll import entities, entity_scores, make_pieces
from train_jobs.tasks.rows.tables import Problems, Table
from train_jobs.tasks.squad.windows import best_window, window_spans

if TYPE_CHECKING:
    import pyarrow as pa

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class Words(NamedTuple):
    """What is predicted of the words of a row."""

    tags: list[str]
    probabilities: list[float]


class Tagging(Task):
    """As `Task` has it. A word's tag is that of its first piece, as it was learned."""

    forms = (*TABLES, LINES, "conll")

    @property
    def is_split(self) -> bool:
        """Whether the input has words, and no text."""
        return self.config.form(self.config.input[0]) == "conll"

    def check(self, table: Table, problems: Problems) -> None:
        if not self.is_split:
            super().check(table, problems)
        for row, tags in enumerate(table.columns.get(TAGS, ())):
            for tag in dict.fromkeys(tags):
                if tag not in self.folder.labels:
                    guess = did_you_mean(tag, self.folder.labels)
                    problems.add(table.where(row), f"a sentence with the tag {tag!r}, which the model has not{guess}")

    def predict(self, table: Table, first: int) -> Predicted:
        if not self.is_split:
            return Predicted(self._of_texts(table.columns[self.config.data.text]), {})
        words = table.columns[WORDS]
        found = self._of_words(words)
        records = [self._sentence_record(*one) for one in zip(words, found, strict=True)]
        judged = {}
        if self.config.evaluate:
            judged = {"gold": table.columns[TAGS], "predicted": [one.tags for one in found]}
        return Predicted(records, judged)

    def scores(self, judged: Sequence[dict[str, Any]]) -> dict[str, float]:
        gold, predicted = ([tags for one in judged for tags in one[key]] for key in ("gold", "predicted"))
        right = sum(a == b for rows in zip(gold, predicted, strict=True) for a, b in zip(*rows, strict=True))
        return {"accuracy": right / sum(map(len, gold)), **entity_scores(gold, predicted)}

    def fields(self) -> dict[str, pa.DataType]:
        import pyarrow as pa

        entity = [("type", pa.string()), ("text", pa.string()), ("probability", pa.float64())]
        if not self.is_split:
            return {"entities": pa.list_(pa.struct([*entity, ("begin", pa.int64()), ("end", pa.int64())]))}
        return {
            "words": pa.list_(pa.string()),
            "tags": pa.list_(pa.string()),
            "entities": pa.list_(pa.struct([*entity, ("first", pa.int64()), ("last", pa.int64())])),
        }

    def _of_words(self, sentences: Sequence[Sequence[str]]) -> list[Words]:
        pieces = list(make_pieces(sentences, self.tokenizer, max_length=self.max_length))
        sequences = [Tokens(np.array(one.input_ids, np.int64), len(one.input_ids)) for one in pieces]
        found = [Words([], []) for _ in sentences]
        for one, (tags, probabilities) in zip(pieces, self.forward.each(sequences, self._tags), strict=True):
            found[one.sentence].tags.extend(self.folder.labels[tags[start]] for start in one.starts)
            found[one.sentence].probabilities.extend(float(probabilities[start]) for start in one.starts)
        return found

    def _of_texts(self, texts: Sequence[str]) -> list[Record]:
        """A long text is read in sequences that overlap by half; each word is judged where it has the most context."""
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        room = self.max_length - 2
        spans = [window_spans(len(one.ids), room, room // 2) for one in encoded]
        sequences = [
            joined(self.cls, self.sep, one.ids[begin:end])
            for one, some in zip(encoded, spans, strict=True)
            for begin, end in some
        ]
        found = iter(self.forward.each(sequences, self._tags))
        records = []
        for text, one, some in zip(texts, encoded, spans, strict=True):
            both: list[npt.NDArray[Any]] = [np.zeros(len(one.ids), dtype) for dtype in (np.int64, np.float32)]
            best = best_window(len(one.ids), some)
            for number, (begin, end) in enumerate(some):
                mine = best[begin:end] == number
                for whole, part in zip(both, next(found), strict=True):
                    whole[begin:end][mine] = part[1:-1][mine]
            records.append(self._text_record(text, one, *both))
        return records

    def _text_record(self, text: str, one: Encoding, tags: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> Record:
        starts = [place for place, word in enumerate(one.word_ids) if not place or one.word_ids[place - 1] != word]
        ends = [after - 1 for _, after in pairwise([*starts, len(one.ids)])]
        found = []
        for entity in entities([self.folder.labels[tags[start]] for start in starts]):
            begin, end = one.offsets[starts[entity.first]][0], one.offsets[ends[entity.last]][1]
            probability = float(np.mean(probabilities[starts[entity.first : entity.last + 1]]))
            place = {"begin": begin, "end": end}
            found.append({"type": entity.type, "text": text[begin:end], "probability": rounded(probability), **place})
        return {"entities": found}

    def _sentence_record(self, words: Sequence[str], found: Words) -> Record:
        told = []
        for entity in entities(found.tags):
            part = slice(entity.first, entity.last + 1)
            probability = float(np.mean(found.probabilities[part]))
            place = {"first": entity.first, "last": entity.last}
            told.append(
                {"type": entity.type, "text": " ".join(words[part]), "probability": rounded(probability), **place}
            )
        return {"words": list(words), "tags": found.tags, "entities": told}

    def _tags(self, batch: Batch) -> list[Arrays]:
        """Of each token the likeliest tag and its probability."""
        logits = self.forward.model(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        best = torch.softmax(logits.float(), -1).max(-1)
        each = zip(best.indices.cpu().numpy(), best.values.cpu().numpy(), batch.lengths.tolist(), strict=True)
        return [(tags[:length], probabilities[:length]) for tags, probabilities, length in each]
