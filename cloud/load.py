"""From a model source to a verifier that is ready to run. The part of serving that needs torch."""

import os

import torch

from cloud.config import ServeConfig
from cloud.source import ModelSource
from cloud.target import load_target
from cloud.torch_model import TorchModel
from cloud.verifier import Verifier
from shared.bundle import Manifest
from shared.errors import BadInput

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_verifier(source: ModelSource, manifest: Manifest, config: ServeConfig) -> tuple[Verifier, int]:
    """The verifier and the size of its vocabulary.

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
    model = load_target(source, DTYPES[config.dtype])
    target = TorchModel(model, cut=manifest.cut, max_context=config.limits.max_context, device=config.device)
    return Verifier(target), target.vocab_size
