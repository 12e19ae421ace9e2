"""From a model source to a verifier that is ready to run. The part of serving that needs torch."""

import os
from dataclasses import dataclass

import torch

from cloud.config import AUTO, ServeConfig
from cloud.packed_linear import can_pack
from cloud.source import ModelSource
from cloud.target import load_target
from cloud.torch_model import TorchModel
from cloud.verifier import Verifier
from shared.bundle import Manifest
from shared.errors import BadInput

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verifier, the size of its vocabulary, and the dtype that it runs in."""

    verifier: Verifier
    vocab_size: int
    dtype: str


def load_verifier(source: ModelSource, manifest: Manifest, config: ServeConfig) -> Loaded:
    """Load the model and make it ready to verify.

    Raises BadInput for a device or dtype that this machine can't run.
    """
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(
            f"--device {config.device}: torch {torch.__version__} sees no CUDA device here; use --device cpu"
        )
    if config.device == "cpu":
        if config.dtype == "fp16":
            raise BadInput("--dtype fp16 is slow and inexact on a CPU; use bf16 or fp32")
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    dtype = pick_dtype(config.dtype, config.device)
    model = load_target(source, DTYPES[dtype])
    target = TorchModel(model, cut=manifest.cut, max_context=config.limits.max_context, device=config.device)
    return Loaded(Verifier(target), target.vocab_size, dtype)


def pick_dtype(dtype: str, device: str) -> str:
    """`dtype`, or for "auto" the fastest one that this machine has instructions for.

    A CPU without bf16 instructions takes longer for several rows in bf16 than in fp32, which undoes drafting.
    """
    if dtype != AUTO:
        return dtype
    if device == "cpu":
        return "bf16" if can_pack(torch.bfloat16) else "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
