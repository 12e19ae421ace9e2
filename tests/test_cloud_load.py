import pytest
import torch

from cloud.load import pick_dtype


@pytest.mark.parametrize(("packs", "dtype"), [(True, "bf16"), (False, "fp32")])
def test_a_cpu_without_bf16_instructions_verifies_in_fp32(
    monkeypatch: pytest.MonkeyPatch, packs: bool, dtype: str
) -> None:
    monkeypatch.setattr("cloud.load.can_pack", lambda asked: asked is torch.bfloat16 and packs)
    assert pick_dtype("auto", "cpu") == dtype


@pytest.mark.parametrize(("supported", "dtype"), [(True, "bf16"), (False, "fp16")])
def test_a_gpu_without_bf16_verifies_in_fp16(monkeypatch: pytest.MonkeyPatch, supported: bool, dtype: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert pick_dtype("auto", "cuda") == dtype


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_dtype_that_was_asked_for_is_kept(dtype: str) -> None:
    assert pick_dtype(dtype, "cpu") == dtype
