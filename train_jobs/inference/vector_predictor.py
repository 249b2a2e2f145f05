"""A vector for each text: the mean over its tokens, or that of [CLS]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from train_jobs.config import PredictConfig, SpecError
from train_jobs.inference.forward import Batch, Forward
from train_jobs.inference.model_folder import Folder
from train_jobs.inference.predictor import Predicted, Task
from train_jobs.models.bert.losses import length_mask
from train_jobs.tasks.rows.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

Vectors = npt.NDArray[np.float32]


class Embeddings(Task):
    """As `Task` has it.

    Raises:
        SpecError: vectors are to be scored.
    """

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        super().__init__(config, folder, tokenizer, forward)
        if config.evaluate:
            raise SpecError(
                f"{folder.path} has no head, and nothing says which embeddings are right", fix="--set evaluate=false"
            )

    def predict(self, table: Table, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        found = self.forward.each(sequences, self._vectors)
        return Predicted([{"embedding": vector} for vector in found], {}, cut)

    def fields(self) -> dict[str, pa.DataType]:
        import pyarrow as pa

        return {"embedding": pa.list_(pa.float32(), self.folder.shape.hidden_size)}

    def _vectors(self, batch: Batch) -> Vectors:
        """fp32 [B, H]"""
        wanted, packing = self.config.embeddings, batch.packing
        hidden = self.forward.model.bert(batch.input_ids, batch.token_type_ids, batch.attention_mask, packing)
        if wanted.pooling == "cls":
            pooled = (hidden[:, 0] if packing is None else packing.first(hidden)).float()
        else:
            laid_out = hidden if packing is None else packing.lay_out(hidden)
            real = length_mask(batch.lengths, laid_out.shape[1])[..., None]
            pooled = laid_out.float().masked_fill(~real, 0).sum(1) / batch.lengths[:, None]
        if wanted.normalise:
            pooled = torch.nn.functional.normalize(pooled)
        found: Vectors = pooled.cpu().numpy()
        return found
