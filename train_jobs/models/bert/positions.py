"""Interpolation of learned position embeddings, so that a model reads longer sequences than it was trained on.

Linear interpolation of learned position embeddings is common for vision transformers at a higher resolution
(Dosovitskiy et al. 2021, arXiv 2010.11929, section 3.2). For rotary embeddings of text, Chen et al. 2023 (arXiv
2306.15595) find interpolated positions better than positions beyond the training, and best after further training.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate


@torch.no_grad()
def stretch_positions(table: Tensor, trained: int, stretched: int) -> None:
    """Interpolate trained position embeddings linearly over a longer range, in place.

    The first and the last trained embedding become the first and the last of the longer range: position 0, that of
    [CLS], keeps its embedding.

    Args:
        table: [P, H] position embeddings.
        trained: positions that were trained, at most P.
        stretched: positions to cover, at most P; rows beyond keep their values.
    """
    source = table[:trained].float().T.unsqueeze(0)
    longer = interpolate(source, size=stretched, mode="linear", align_corners=True)
    table[:stretched] = longer[0].T.to(table.dtype)
