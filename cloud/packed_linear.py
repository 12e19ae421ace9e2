"""Linear layers on a CPU with their weights laid out once for oneDNN, which otherwise repacks them on every call.

A packed layer also gives each row the same bits whatever other rows come with it, which plain ones don't: oneDNN
picks its kernel by the number of rows, so the rows are cut or filled up to counts that share one kernel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Counts of rows that give the same bits for each row. A single row goes to a matrix-vector kernel on most CPUs; bf16
# tile instructions (AMX) add in another order above the other number.
MIN_ROWS = 2
MAX_ROWS = {torch.bfloat16: 32}


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` for x [..., in_features], in the dtype of the weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # Not a buffer: a tensor in oneDNN's own layout can't be saved, moved or cast.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._max_rows = MAX_ROWS.get(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)  # [rows, in_features]
        if self._max_rows is None or rows.shape[0] <= self._max_rows:
            out = self._multiply(rows)
        else:
            out = torch.cat([self._multiply(block) for block in rows.split(self._max_rows)])
        return out.view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        if count < MIN_ROWS:
            rows = F.pad(rows, (0, 0, 0, MIN_ROWS - count))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return product[:count]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this CPU and this torch multiply packed weights of `dtype`, tried on a small layer."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    layer = nn.Linear(32, 32, bias=False).to(dtype)
    probe = torch.linspace(-1, 1, 64).view(2, 32).to(dtype)
    try:
        packed = PackedLinear(layer)(probe)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return torch.allclose(packed.float(), layer(probe).float(), rtol=2e-2, atol=2e-2)


def pack_linears(model: nn.Module) -> int:
    """Replace every nn.Linear of `model`, which must be on the CPU, by a packed one; the number of layers replaced.

    Weights of another user (an embedding tied to the head) stay as they are. Where `can_pack` says no, nothing changes.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    if not all(can_pack(dtype) for dtype in {linear.weight.dtype for _, _, linear in places}):
        return 0
    count = len(places)
    while places:
        # Popped, so that a plain weight is freed before the next one is packed.
        parent, name, linear = places.pop()
        setattr(parent, name, PackedLinear(linear))
    return count
