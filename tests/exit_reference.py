"""What a bundle must compute, in torch: the residual at the cut, and the logits of the last block fed from there."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from cloud.distil.head import ExitHead
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_head import TrainedHead


def exit_reference(
    model: PreTrainedModel, ids: Sequence[int], cut: int, entry: ExitEntry | TrainedHead
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits of every row [T, vocab] and residuals at the cut [T, d], float32; a trained head in its torch form."""
    tokens = torch.tensor([list(ids)])
    with torch.inference_mode():
        hidden = model.model(tokens, output_hidden_states=True, use_cache=False).hidden_states[cut]
        if isinstance(entry, TrainedHead):
            return model.lm_head(ExitHead.of(model, entry)(hidden))[0].numpy(), hidden[0].numpy()
        positions = torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)[None, None]
        entered = hidden + torch.from_numpy(entry.shift)
        if entry.matrix is not None:
            entered = entered + hidden @ torch.from_numpy(entry.matrix)
        tables = model.model.rotary_emb(entered, positions)
        left = model.model.layers[-1](entered, attention_mask=mask, position_ids=positions, position_embeddings=tables)
        left = left[0] if isinstance(left, tuple) else left
        logits = model.lm_head(model.model.norm(left))
    return logits[0].numpy(), hidden[0].numpy()
