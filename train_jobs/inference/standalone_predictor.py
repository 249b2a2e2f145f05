"""Predictions of a registered model without this package: a copy of this file is in every MLflow model of a run.

MLflow runs the copy ("models from code"), so it imports nothing of this package, and each model keeps the code that it
was registered with. Records are those of `train_jobs.predict` with its default settings; arithmetic is fp32. Long
contexts and texts with entities are split into windows as there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import numpy.typing as npt
import torch
import transformers
from mlflow.pyfunc import PythonModel
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers.utils import logging

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]
Record = dict[str, Any]
BATCH_TOKENS = 8192  # padded tokens of one forward pass
MOST_ROWS, MOST_CHARACTERS = 256, 1_000_000  # computed together; their memory is freed before the next ones
DOC_STRIDE, MAX_QUERY, MAX_CONTEXT, N_BEST, MAX_ANSWER = 128, 64, 384, 20, 30  # defaults of train_jobs.predict
TOP_K, LABEL_THRESHOLD = 5, 0.5


class StandaloneBert(PythonModel):
    """A BERT with its head, from the Hugging Face folder that the artifact `model` names."""

    def load_context(self, context: Any) -> None:
        """Load tokenizer, weights and head.

        Raises:
            ValueError: the folder has a head that this code does not know, or its weights have other shapes than its
                config.json states.
        """
        folder = Path(context.artifacts["model"])
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.head = str(config["architectures"][0]).replace("BertForPreTraining", "BertForMaskedLM")
        if self.head not in HEADS:
            raise ValueError(f"unknown class of model {self.head!r}; known are {', '.join(HEADS)}")
        check_shapes(folder, config)
        positions = int(config["max_position_embeddings"])
        trained, stretched = config.get("trained_positions"), config.get("stretched_positions")
        self.longest = min(positions, max(trained or positions, stretched or 0))
        names = config.get("id2label") or {}
        self.labels = [str(names[key]) for key in sorted(names, key=int)] or ["LABEL_0", "LABEL_1"]
        problem = config.get("problem_type")
        self.is_number = problem == "regression" or (problem is None and len(self.labels) == 1)
        self.has_several_labels = problem == "multi_label_classification"
        self.null_threshold: float | None = config.get("null_threshold")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.cls, self.sep, self.mask = (
            int(self.tokenizer.token_to_id(piece) or 0) for piece in ("[CLS]", "[SEP]", "[MASK]")
        )
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        loader, verbosity = getattr(transformers, self.head), logging.get_verbosity()
        logging.set_verbosity_error()  # of a pretrained model, transformers reports the heads that it leaves out
        try:
            model = loader.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype=torch.float32)
        finally:
            logging.set_verbosity(verbosity)
        self.model = model.to(self.device).eval()

    # MLmodel has the schema of the input; MLflow would take it from the annotations of `predict`, and warn of this one
    _skip_type_hint_validation = True

    def predict(self, context: Any, model_input: Any, params: Mapping[str, Any] | None = None) -> list[Record]:
        """Return one record for each row.

        Args:
            context: unused.
            model_input: a DataFrame, or a list of texts or of mappings. Columns: `text`, and `pair` for pairs of texts;
                a single column may have any name. For questions: `question` and `context`.
            params: `top_k`, the number of labels of a text, or of words for a [MASK]. None: all labels, 5 words.

        Raises:
            ValueError: a row has no text, or a language model gets a text without [MASK].
        """
        rows = _rows(model_input, ("question", "context") if self.head.endswith("QuestionAnswering") else None)
        top_k, records = (params or {}).get("top_k") or None, list[Record]()
        for some in chunks(rows):
            try:
                records += HEADS[self.head](self, some, top_k)
            except RowError as problem:
                raise ValueError(f"row {len(records) + problem.row}: {problem}") from None
        return records

    @torch.no_grad()
    def forward(self, sequences: Sequence[tuple[list[int], int]], *keys: str) -> list[list[Floats]]:
        """Return outputs of the model for each sequence, on the host; those of tokens without padding.

        Args:
            sequences: ids, and the position of the second segment.
            keys: names of the outputs. None: logits.
        """
        found: list[Any] = [None] * len(sequences)
        order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row][0]))
        while order:
            size = len(sequences[order[0]][0])
            rows, order = order[: max(BATCH_TOKENS // size, 1)], order[max(BATCH_TOKENS // size, 1) :]
            ids, segments, mask = (torch.zeros(len(rows), size, dtype=torch.int64) for _ in range(3))
            for place, row in enumerate(rows):
                one, second = sequences[row]
                ids[place, : len(one)], mask[place, : len(one)] = torch.tensor(one), 1
                segments[place, second : len(one)] = 1
            inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
            output = self.model(**{name: value.to(self.device) for name, value in inputs.items()})
            wanted = [output[key].float().cpu().numpy() for key in keys or ("logits",)]
            for place, row in enumerate(rows):
                length = len(sequences[row][0])
                # of a sequence: [classes]; of its tokens: [length, classes], or [length] for the ends of answers
                found[row] = [one[place][:length] if one.ndim == 3 or keys else one[place] for one in wanted]
        return found

    def joined(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], int]:
        """Return [CLS] first [SEP], or [CLS] first [SEP] second [SEP], and where the second segment begins."""
        ids = [self.cls, *first, self.sep]
        return [*ids, *(() if second is None else (*second, self.sep))], len(ids)

    def sequences(self, rows: Sequence[Sequence[str]]) -> list[tuple[list[int], int]]:
        """Encode texts or pairs of texts; the longer text of a pair is truncated first."""
        columns = [
            self.tokenizer.encode_batch(list(texts), add_special_tokens=False) for texts in zip(*rows, strict=True)
        ]
        found = []
        for encoded in zip(*columns, strict=True):
            ids = [one.ids for one in encoded]
            lengths = truncated_lengths(len(ids[0]), sum(map(len, ids[1:])), self.longest - 1 - len(ids))
            parts = [one[:length] for one, length in zip(ids, lengths, strict=False)]
            found.append(self.joined(*parts))
        return found


class RowError(ValueError):
    """A row cannot be predicted.

    Args:
        row: its number among the rows that are computed together.
        what: the problem.
    """

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def chunks(rows: Sequence[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Yield rows to compute together: at most `MOST_ROWS`, and several only with at most `MOST_CHARACTERS`."""
    some: list[Sequence[str]] = []
    characters = 0
    for row in rows:
        size = sum(map(len, row))
        if some and (len(some) == MOST_ROWS or characters + size > MOST_CHARACTERS):
            yield some
            some, characters = [], 0
        some.append(row)
        characters += size
    if some:
        yield some


def check_shapes(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that the weights have the shapes that config.json states, before memory is allocated for them.

    Raises:
        ValueError: a tensor has another shape.
    """
    keys = ("hidden_size", "vocab_size", "max_position_embeddings", "intermediate_size")
    hidden, vocabulary, positions, wide = (int(config[key]) for key in keys)
    need = {
        "embeddings.word_embeddings.weight": [vocabulary, hidden],
        "embeddings.position_embeddings.weight": [positions, hidden],
        "encoder.layer.0.intermediate.dense.weight": [wide, hidden],
    }
    path, layers = folder / "model.safetensors", set()
    with safe_open(path, framework="pt") as file:
        for name in [*file.keys()]:
            short = name.removeprefix("bert.")
            layers |= {short.split(".")[2]} if short.startswith("encoder.layer.") else set()
            if short in need and (shape := file.get_slice(name).get_shape()) != need[short]:
                raise ValueError(f"{path}: {name} has the shape {shape}, but config.json states {need[short]}")
    if len(layers) != int(config["num_hidden_layers"]):
        raise ValueError(f"{path}: {len(layers)} layers, but config.json states {config['num_hidden_layers']}")


def classify(bert: StandaloneBert, rows: Sequence[Sequence[str]], top_k: int | None) -> list[Record]:
    """Return labels with probabilities, or numbers."""
    records = []
    for (scores,) in bert.forward(bert.sequences(rows)):
        logits = scores.astype(np.float64)
        if bert.is_number:
            records.append({"value": rounded(logits[0])})
            continue
        found = 1 / (1 + np.exp(-logits)) if bert.has_several_labels else softmax(logits)
        every = {bert.labels[number]: rounded(found[number]) for number in np.argsort(-found, kind="stable")}
        label, probability = next(iter(every.items()))
        if bert.has_several_labels:
            record: Record = {"labels": [name for name, value in every.items() if value >= LABEL_THRESHOLD]}
        else:
            record = {"label": label, "probability": probability}
        record["probabilities"] = dict(islice(every.items(), top_k))
        records.append(record)
    return records


def fill_masks(bert: StandaloneBert, rows: Sequence[Sequence[str]], top_k: int | None) -> list[Record]:
    """Return the most likely words for each [MASK]."""
    sequences, pieces, records = bert.sequences(rows), bert.tokenizer.get_vocab_size(), []
    for number, (row, (ids, _)) in enumerate(zip(rows, sequences, strict=True)):
        if bert.mask not in ids:
            hint = "after its truncation" if any("[MASK]" in text for text in row) else "in it"
            raise RowError(number, f"the text has no [MASK] {hint}")
    # one at a time: logits of a batch would have [tokens, vocabulary] numbers
    for ids, second in sequences:
        ((logits,),) = bert.forward([(ids, second)])
        masks = []
        for place in np.flatnonzero(np.array(ids) == bert.mask):
            found = softmax(logits[place, :pieces].astype(np.float64))
            best = np.argsort(-found, kind="stable")[: top_k or TOP_K]
            masks.append(
                [{"token": bert.tokenizer.id_to_token(int(one)), "probability": rounded(found[one])} for one in best]
            )
        records.append({"masks": masks})
    return records


def tag(bert: StandaloneBert, rows: Sequence[Sequence[str]], top_k: int | None) -> list[Record]:
    """Return the entities of texts; long texts are split into windows that overlap by half."""
    encoded = bert.tokenizer.encode_batch([row[0] for row in rows], add_special_tokens=False)
    room = bert.longest - 2
    spans = [list(windows(len(one.ids), room, room // 2)) for one in encoded]
    outputs = iter(
        bert.forward([bert.joined(one.ids[a:b]) for one, some in zip(encoded, spans, strict=True) for a, b in some])
    )
    records = []
    for row, one, some in zip(rows, encoded, spans, strict=True):
        best, tags, likely = best_window(len(one.ids), some), np.zeros(len(one.ids), int), np.zeros(len(one.ids))
        for number, (begin, end) in enumerate(some):
            found, mine = softmax(next(outputs)[0][1:-1].astype(np.float64)), best[begin:end] == number
            tags[begin:end][mine], likely[begin:end][mine] = found.argmax(-1)[mine], found.max(-1)[mine]
        starts = [place for place, word in enumerate(one.word_ids) if not place or one.word_ids[place - 1] != word]
        ends = [after - 1 for _, after in pairwise([*starts, len(one.ids)])]
        entities = []
        for kind, first, last in spans_of([bert.labels[tags[start]] for start in starts]):
            begin, end = one.offsets[starts[first]][0], one.offsets[ends[last]][1]
            mean = rounded(float(np.mean(likely[starts[first : last + 1]])))
            entities.append({"type": kind, "text": row[0][begin:end], "probability": mean, "begin": begin, "end": end})
        records.append({"entities": entities})
    return records


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return type, first and last word of the entities in BIO, BIOES or BILOU, as conlleval finds them."""
    found: list[tuple[str, int, int]] = []
    open_type = ""
    for number, one in enumerate(tags):
        letter, _, kind = one.partition("-")
        if letter == "O":
            open_type = ""
            continue
        if letter in {"I", "E", "L"} and open_type == kind:
            found[-1] = (kind, found[-1][1], number)
        else:
            found.append((kind, number, number))
        open_type = "" if letter in {"E", "L", "S", "U"} else kind
    return found


def answer(bert: StandaloneBert, rows: Sequence[Sequence[str]], top_k: int | None) -> list[Record]:
    """Return answers: spans of the contexts, found by the rules of run_squad.py."""
    longest = min(MAX_CONTEXT, bert.longest)
    questions, contexts = (
        bert.tokenizer.encode_batch(list(texts), add_special_tokens=False) for texts in zip(*rows, strict=True)
    )
    sequences, layout = [], []
    for question, context in zip(questions, contexts, strict=True):
        query = question.ids[: min(MAX_QUERY, longest // 2)]
        spans = list(windows(len(context.ids), longest - len(query) - 3, DOC_STRIDE))
        layout.append((len(query) + 2, spans))
        sequences += [bert.joined(query, context.ids[begin:end]) for begin, end in spans]
    logits = iter(bert.forward(sequences, "start_logits", "end_logits"))
    return [
        _answer(row[1], context.offsets, first, spans, [next(logits) for _ in spans], bert.null_threshold)
        for row, context, (first, spans) in zip(rows, contexts, layout, strict=True)
    ]


def _answer(
    text: str,
    offsets: Sequence[tuple[int, int]],
    first: int,
    spans: Sequence[tuple[int, int]],
    logits: Sequence[Sequence[Floats]],
    threshold: float | None,
) -> Record:
    """Return the record of one question; see `answer`."""
    best, found = best_window(len(offsets), spans), list[tuple[float, float, float, int, int]]()
    for number, ((begin, end), (start, stop)) in enumerate(zip(spans, logits, strict=True)):
        starts, stops = start[first : first + end - begin], stop[first : first + end - begin]
        firsts = np.flatnonzero(best[begin:end] == number)
        firsts = firsts[np.argsort(-starts[firsts], kind="stable")[:N_BEST]]
        lasts = np.argsort(-stops, kind="stable")[:N_BEST]
        # within a window by score and then by place, as the sort of all windows keeps the order of equal scores
        inside = [(int(a), int(b)) for a in firsts for b in lasts if 0 <= b - a < MAX_ANSWER]
        scored = [
            (
                float(starts[a]) + float(stops[b]),
                float(starts[a]),
                float(stops[b]),
                offsets[begin + a][0],
                offsets[begin + b][1],
            )
            for a, b in inside
        ]
        found += sorted(scored, key=lambda one: -one[0])
    chosen: dict[str, tuple[float, float, float, int, int]] = {}
    for one in sorted(found, key=lambda one: -one[0]):
        if len(chosen) == N_BEST:
            break
        chosen.setdefault(text[one[3] : one[4]], one)
    top = next(iter(chosen), "")
    begin_of = chosen[top][3] if chosen else None
    record: Record = {}
    if threshold is not None:
        null = min((float(start[0] + stop[0]), float(start[0]), float(stop[0]), 0, 0) for start, stop in logits)
        odds = null[0] - (chosen[top][0] if chosen else 0.0)
        chosen[""] = null
        record = {"null_odds": rounded(odds)}
        top = "" if odds > threshold else top
    candidates = _candidates(chosen)
    probability = next((one["probability"] for one in candidates if one["text"] == top), 0.0)
    begin_of = begin_of if top else None
    place = {"begin": begin_of, "end": None if begin_of is None else begin_of + len(top)}
    return {"answer": top, **place, "probability": probability, **record, "candidates": candidates}


def _candidates(chosen: Mapping[str, tuple[float, float, float, int, int]]) -> list[Record]:
    if not chosen:
        return [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    ordered = sorted(chosen.items(), key=lambda pair: -pair[1][0])
    weights = softmax(np.array([one[0] for _, one in ordered]))
    return [
        {"text": text, "probability": rounded(weight), "start_logit": rounded(one[1]), "end_logit": rounded(one[2])}
        for (text, one), weight in zip(ordered, weights, strict=True)
    ]


def windows(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield the first token and the one after the last of each window; one window if the text fits."""
    begin, end = 0, min(room, tokens)
    while end < tokens:
        yield begin, end
        begin += min(stride, room)
        end = min(begin + room, tokens)
    yield begin, end


def best_window(tokens: int, spans: Sequence[tuple[int, int]]) -> Ints:
    """Return the number of the window in which each token has the most context on its shorter side, [tokens]."""
    best, scores = np.zeros(tokens, np.int64), np.full(tokens, -1.0)
    for number, (begin, end) in enumerate(spans):
        place = np.arange(end - begin)
        score = np.minimum(place, end - begin - 1 - place) + 0.01 * (end - begin)
        better = score > scores[begin:end]
        best[begin:end][better] = number
        scores[begin:end][better] = score[better]
    return best


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the number of tokens to keep of each of two texts: the longer one is truncated first."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if shorter <= room // 2:
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    return (room // 2, room - room // 2) if first <= second else (room - room // 2, room // 2)


def softmax(logits: Floats) -> Floats:
    """Return probabilities over the last axis."""
    found = np.exp(logits - logits.max(-1, keepdims=True))
    weights: Floats = found / found.sum(-1, keepdims=True)
    return weights


def rounded(number: float) -> float:
    """Round to the significant digits of fp32."""
    return float(f"{number:.7g}")


def _rows(model_input: Any, names: tuple[str, ...] | None) -> list[list[str]]:
    """Return the texts of each row.

    Args:
        model_input: see `StandaloneBert.predict`.
        names: columns. None: `text` and, for pairs, `pair`; or the only column.

    Raises:
        ValueError: a row lacks a text.
    """
    if hasattr(model_input, "to_dict"):  # a DataFrame
        model_input = model_input.to_dict(orient="records")
    found = []
    for number, row in enumerate([model_input] if isinstance(model_input, str | dict) else list(model_input)):
        one = {"text": row} if isinstance(row, str) else row
        paired = "text" in one and isinstance(one.get("pair"), str)
        columns = names or (("text", "pair") if paired else ("text",) if "text" in one else tuple(one)[:1])
        values = [one.get(name) for name in columns]
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError(f"row {number}: need texts in the columns {', '.join(map(str, columns))}")
        found.append([str(value) for value in values])
    return found


Head = Callable[[StandaloneBert, Sequence[Sequence[str]], int | None], list[Record]]
HEADS: dict[str, Head] = {
    "BertForSequenceClassification": classify,
    "BertForTokenClassification": tag,
    "BertForQuestionAnswering": answer,
    "BertForMaskedLM": fill_masks,
}
"""Class of transformers -> function that makes the records of rows."""
mlflow.models.set_model(StandaloneBert())
