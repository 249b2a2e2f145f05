"""An answer to each question: a stretch of its context, with its place; or that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from train_jobs.config.predict import AUTO
from train_jobs.inference.forward import Batch, Tokens
from train_jobs.inference.predictor import TABLES, Predicted, Record, Task, rounded
from train_jobs.inference.readers import ANSWERS, CONTEXT, ID, QUESTION, SquadReader
from train_jobs.tasks.rows.tables import Problems, Table
from train_jobs.tasks.squad.reading import Question
from train_jobs.tasks.squad.scoring import score_v1, score_v2
from train_jobs.tasks.squad.spans import Floats, Prediction, predict
from train_jobs.tasks.squad.windows import make_windows

if TYPE_CHECKING:
    import pyarrow as pa

USUAL_LENGTH = 384


class Answers(Task):
    """As `Task` has it.

    `squad`, if the input is of that form, is to be set before anything is predicted.
    """

    forms = (*TABLES, "squad")
    squad: Sequence[SquadReader] = ()

    @property
    def usual_length(self) -> int:
        return USUAL_LENGTH

    @property
    def text_columns(self) -> list[str]:
        return [self.config.data.question, self.config.data.context]

    @property
    def threshold(self) -> float | None:
        """Odds of no answer above which none is given; None: there always is one."""
        wanted = self.config.answers.null_threshold
        if wanted != AUTO:
            return wanted
        tuned = self.folder.null_threshold
        if not self.squad:
            return tuned
        return (tuned or 0.0) if any(reader.squad.version_2 for reader in self.squad) else None

    def check(self, table: Table, problems: Problems) -> None:
        if not self.squad:  # whose reader has looked at every question
            super().check(table, problems)

    def predict(self, table: Table, first: int) -> Predicted:
        questions = self._questions(table, first)
        data, answers = self.config.data, self.config.answers
        windows = make_windows(
            questions,
            self.tokenizer,
            max_length=self.max_length,
            stride=data.doc_stride,
            max_query_length=min(data.max_query_length, self.max_length // 2),
        )
        logits = self.forward.each([Tokens(one.input_ids, one.first) for one in windows], self._logits)
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
        judged: dict[str, Any] = {}
        if self.config.evaluate:
            judged["answers"] = {one.id: one.best for one in found}
            judged["null_odds"] = {one.id: one.null_odds for one in found}
        return Predicted([self._record(one) for one in found], judged)

    def scores(self, judged: Sequence[dict[str, Any]]) -> dict[str, float]:
        questions = [question for reader in self.squad for question in reader.squad.questions]
        answers = {key: text for one in judged for key, text in one["answers"].items()}
        if self.threshold is None:
            return score_v1(questions, answers)
        odds = {key: value for one in judged for key, value in one["null_odds"].items()}
        return score_v2(questions, answers, odds, threshold=self.threshold)

    def fields(self) -> dict[str, pa.DataType]:
        import pyarrow as pa

        number = pa.float64()
        candidate = [("text", pa.string()), ("probability", number), ("start_logit", number), ("end_logit", number)]
        return {
            **({"id": pa.string()} if self.squad else {}),
            "answer": pa.string(),
            "begin": pa.int64(),
            "end": pa.int64(),
            "probability": number,
            **({} if self.threshold is None else {"null_odds": number}),
            "candidates": pa.list_(pa.struct(candidate)),
        }

    def _questions(self, table: Table, first: int) -> list[Question]:
        if self.squad:
            each = zip(*(table.columns[name] for name in (ID, QUESTION, CONTEXT, ANSWERS)), strict=True)
            return [Question(*values) for values in each]
        asked, about = (table.columns[name] for name in self.text_columns)
        return [
            Question(str(number), question, context, ())
            for number, (question, context) in enumerate(zip(asked, about, strict=True), start=first)
        ]

    def _logits(self, batch: Batch) -> list[tuple[Floats, Floats]]:
        logits = self.forward.model(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        each = logits.float().cpu().numpy()
        return [(one[:length, 0], one[:length, 1]) for one, length in zip(each, batch.lengths.tolist(), strict=True)]

    def _record(self, found: Prediction) -> Record:
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
