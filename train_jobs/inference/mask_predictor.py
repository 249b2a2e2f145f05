"""Words for masks; and how well a language model finds words that are masked here, to evaluate it on any text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train_jobs.corpus.examples.masking import mask_tokens
from train_jobs.corpus.examples.randomness import keys
from train_jobs.inference.forward import Batch, Tokens
from train_jobs.inference.predictor import Predicted, Record, Task, rounded
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.tasks.rows.tables import Problems, Table

if TYPE_CHECKING:
    import pyarrow as pa

MASK = "[MASK]"
USUAL_TOP = 5
STREAM = 7  # of draws: which tokens are masked

Ints = npt.NDArray[np.int64]


class Masks(Task):
    """As `Task` has it."""

    def check(self, table: Table, problems: Problems) -> None:
        super().check(table, problems)
        if self.config.evaluate:
            return
        for row in range(len(table)):
            values = [table.columns[column][row] for column in self.text_columns]
            if all(isinstance(value, str) and MASK not in value for value in values):
                problems.add(table.where(row), f"there is no {MASK} in the text")

    def predict(self, table: Table, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        if self.config.evaluate:
            return self._evaluated(sequences, first, cut)
        mask = self.tokenizer.token_to_id(MASK)
        places = [np.flatnonzero(one.ids == mask) for one in sequences]
        found = self.forward.each(sequences, lambda batch: self._top(batch, [places[row] for row in batch.rows]))
        return Predicted([{"masks": one} for one in found], {}, cut)

    def scores(self, judged: Sequence[dict[str, Any]]) -> dict[str, float]:
        loss, right, masked = (sum(one[key] for one in judged) for key in ("loss", "right", "masked"))
        mean = loss / max(masked, 1)
        return {"mlm_loss": mean, "perplexity": math.exp(min(mean, 700.0)), "mlm_accuracy": right / max(masked, 1)}

    def fields(self) -> dict[str, pa.DataType]:
        import pyarrow as pa

        if self.config.evaluate:
            return {"loss": pa.float64(), "right": pa.int64(), "masked": pa.int64()}
        return {"masks": pa.list_(pa.list_(pa.struct([("token", pa.string()), ("probability", pa.float64())])))}

    def _top(self, batch: Batch, places: Sequence[Ints]) -> list[list[list[Record]]]:
        probabilities = torch.softmax(self._logits(batch, places), -1)
        best = probabilities.topk(min(self.config.top_k or USUAL_TOP, probabilities.shape[-1]))
        told = iter(
            [
                {"token": self.tokenizer.id_to_token(token), "probability": rounded(probability)}
                for token, probability in zip(*mask, strict=True)
            ]
            for mask in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        return [[next(told) for _ in some] for some in places]

    def _evaluated(self, sequences: Sequence[Tokens], first: int, cut: int) -> Predicted:
        masked = [self._masked(one, number) for number, one in enumerate(sequences, start=first)]
        hidden = [Tokens(ids, one.second) for (ids, _), one in zip(masked, sequences, strict=True)]
        wanted = [(places, one.ids[places]) for (_, places), one in zip(masked, sequences, strict=True)]
        found = self.forward.each(hidden, lambda batch: self._losses(batch, [wanted[row] for row in batch.rows]))
        sums = {key: float(sum(one[key] for one in found)) for key in ("loss", "right", "masked")}
        return Predicted(found, sums, cut)

    def _masked(self, one: Tokens, number: int) -> tuple[Ints, Ints]:
        """The ids of a sequence with some hidden, and where; a function of the seed and of the row's number."""
        mask = self.tokenizer.token_to_id(MASK)
        assert mask is not None, "model_folder looks for it"
        candidates = (one.ids != self.cls) & (one.ids != self.sep)
        found = mask_tokens(
            one.ids[None],
            candidates[None],
            np.array([len(one.ids)]),
            keys(self.config.masking.seed, STREAM, number),
            probability=self.config.masking.probability,
            max_predictions=len(one.ids),
            mask_id=mask,
            vocab_size=self.tokenizer.get_vocab_size(),
        )
        return found.input_ids[0], found.positions[0][found.labels[0] >= 0]

    def _losses(self, batch: Batch, wanted: Sequence[tuple[Ints, Ints]]) -> list[Record]:
        logits = self._logits(batch, [places for places, _ in wanted])
        labels = torch.from_numpy(np.concatenate([ids for _, ids in wanted])).to(logits.device)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        right = logits.argmax(-1) == labels
        sizes = [len(ids) for _, ids in wanted]
        each = zip(losses.cpu().split(sizes), right.cpu().split(sizes), sizes, strict=True)
        return [
            {"loss": rounded(float(loss.double().sum())), "right": int(hits.sum()), "masked": size}
            for loss, hits, size in each
        ]

    def _logits(self, batch: Batch, places: Sequence[Ints]) -> Tensor:
        """fp32 [masks of all sequences, pieces]: rows of the table that only pad it are no words."""
        model = self.forward.model
        assert isinstance(model, BertForPreTraining), "the one kind that fills masks"
        hidden = model.bert(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        if batch.packing is None:
            size = batch.input_ids.shape[1]
            begins = np.arange(len(places)) * size
            hidden = hidden.flatten(0, 1)
        else:
            begins = batch.packing.places[:, 0].cpu().numpy()
        index = np.concatenate([begin + some for begin, some in zip(begins, places, strict=True)]).astype(np.int64)
        picked = hidden.index_select(0, torch.from_numpy(index).to(hidden.device))
        logits: Tensor = model.cls.predictions(picked, model.bert.embeddings.word_embeddings.weight)
        return logits[:, : self.tokenizer.get_vocab_size()].float()
