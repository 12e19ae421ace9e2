"""Packed linear layers against plain ones, and against themselves with other numbers of rows."""

from unittest.mock import patch

import pytest
import torch
from torch import nn

from cloud.packed_linear import PackedLinear, can_pack, pack_linears

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    if not can_pack(chosen):
        pytest.skip(f"this CPU multiplies no packed {chosen} weights")
    return chosen


def linear(width: int, out: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, out, bias=bias).requires_grad_(False).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 33])
def test_it_multiplies_as_the_plain_layer_does(dtype: torch.dtype, bias: bool, rows: int) -> None:
    plain = linear(48, 80, dtype, bias)
    x = torch.randn(1, rows, 48).to(dtype)
    out = PackedLinear(plain)(x)
    assert out.shape == (1, rows, 80) and out.dtype == dtype
    torch.testing.assert_close(out, plain(x), rtol=1.6e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


# The shapes of SmolLM2-135M's layers; the second one is where fp32 kernels differ between one row and several.
@pytest.mark.parametrize(("width", "out"), [(576, 1536), (1536, 576), (576, 192)])
def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype, width: int, out: int) -> None:
    packed = PackedLinear(linear(width, out, dtype))
    x = torch.randn(100, width).to(dtype)
    alone = torch.cat([packed(x[row : row + 1]) for row in range(100)])
    for rows in (2, 3, 8, 9, 16, 17, 32, 33, 40, 64, 100):
        assert torch.equal(packed(x[:rows]), alone[:rows]), f"{rows} rows"
    assert torch.equal(packed(x.flip(0)).flip(0), alone)


def test_a_view_with_strides_is_read_as_it_is(dtype: torch.dtype) -> None:
    plain = linear(48, 80, dtype)
    x = torch.randn(48, 6).to(dtype).T
    assert torch.equal(PackedLinear(plain)(x), PackedLinear(plain)(x.contiguous()))


class Tied(nn.Module):
    """An embedding and a head that share their weight, and a layer of its own further down."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16, dtype=dtype)
        self.body = nn.Sequential(linear(16, 16, dtype), nn.ReLU())
        self.head = linear(16, 32, dtype, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(self.embedding(ids)))
        return out


def test_every_linear_layer_is_replaced_and_a_tied_embedding_stays(dtype: torch.dtype) -> None:
    model = Tied(dtype).requires_grad_(False)
    ids = torch.arange(32)
    want, embedding = model(ids), model.embedding.weight.clone()
    assert pack_linears(model) == 2
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert torch.equal(model.embedding.weight, embedding)
    torch.testing.assert_close(model(ids), want, rtol=1.6e-2, atol=1e-2 if dtype is torch.bfloat16 else 1e-5)


def test_without_onednn_nothing_changes() -> None:
    model = Tied(torch.float32)
    with patch("torch.backends.mkldnn.is_available", return_value=False):
        assert pack_linears(model) == 0
    assert isinstance(model.head, nn.Linear) and isinstance(model.body[0], nn.Linear)


def test_a_torch_without_the_operation_can_not_pack() -> None:
    with patch("torch.ops.mkldnn._reorder_linear_weight", side_effect=AttributeError("no such operation")):
        assert not can_pack(torch.float32)


def test_a_dtype_without_a_kernel_can_not_be_packed() -> None:
    assert not can_pack(torch.float64)
