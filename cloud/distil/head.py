"""The exit in torch: an affine entry, one or more decoder blocks and a norm, before the model's own output matrix.

Trained with one block this is EESD's head (arXiv 2404.18911); more blocks cost a drafted token more and draft better.
The output matrix is the model's and is never trained, so a head holds no matrix of the vocabulary's size.
"""

import copy
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloud.publish.device_block import block_values
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_head import TrainedHead


class ExitHead(nn.Module):
    """From residuals at the cut to the state that the output matrix reads, both `[batch, T, d]`.

    The blocks begin as copies of the model's last ones; `entry` takes the residual to where the first expects it.
    """

    def __init__(self, model: Any, n_blocks: int, entry: ExitEntry) -> None:
        super().__init__()
        body = model.model
        self.entry = nn.Linear(len(entry.shift), len(entry.shift))
        matrix = np.zeros((len(entry.shift),) * 2, np.float32) if entry.matrix is None else entry.matrix
        with torch.no_grad():
            self.entry.weight.copy_(torch.from_numpy(np.ascontiguousarray(matrix.T)))
            self.entry.bias.copy_(torch.from_numpy(entry.shift))
        self.blocks = nn.ModuleList(copy.deepcopy(layer).float() for layer in body.layers[-n_blocks:])
        layers: list[Any] = list(self.blocks)
        for block in layers:
            # The model's own may be one that needs a mask, or one that `cloud.attention` has registered.
            block.self_attn.config._attn_implementation = "sdpa"
        self.norm = copy.deepcopy(body.norm).float()
        self.rotary = copy.deepcopy(body.rotary_emb)
        self.requires_grad_(True)

    @classmethod
    def of(cls, model: Any, exit: ExitEntry | TrainedHead) -> Self:
        """The exit of a bundle: a trained one, or an entry and the model's own last block."""
        if isinstance(exit, ExitEntry):
            return cls(model, 1, exit)
        head = cls(model, len(exit.blocks), exit.entry)
        for layer, block in zip(head.blocks, exit.blocks, strict=True):
            layer.load_state_dict({name: torch.from_numpy(rows) for name, rows in block_values(block).items()})
        with torch.no_grad():
            head.norm.weight.copy_(torch.from_numpy(exit.norm))
        return head

    def forward(self, x: Tensor) -> Tensor:
        """Normed states for residuals `x` [batch, T, d]; every row sees itself and those before it. Pad at the end."""
        places = torch.arange(x.shape[1], device=x.device)[None]
        tables = self.rotary(x, places)
        x = x + self.entry(x)
        for block in self.blocks:
            # Without a mask the layers' own SDPA is causal.
            out = block(x, attention_mask=None, position_ids=places, use_cache=False, position_embeddings=tables)
            # A tensor in newer transformers, a tuple that begins with it in older ones.
            x = out[0] if isinstance(out, tuple) else out
        normed: Tensor = self.norm(x)
        return normed

    def exit_entry(self) -> ExitEntry:
        """The entry as it is stored: its matrix rounded to float16's numbers."""
        matrix = self.entry.weight.detach().T.half().float().numpy()
        return ExitEntry(np.ascontiguousarray(matrix), self.entry.bias.detach().numpy().copy())

    def layers(self) -> dict[str, NDArray[np.float32]]:
        """The blocks' tensors by name, as in `0.mlp.up_proj.weight`."""
        return {name: value.detach().float().cpu().numpy() for name, value in self.blocks.state_dict().items()}
