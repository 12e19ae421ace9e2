"""Opening ONNX Runtime sessions so that memory stays flat while sequence lengths change (hazard 13)."""

from pathlib import Path
from typing import Any

import onnxruntime

from shared.errors import BundleError


def open_session(path: Path, threads: int) -> Any:
    """A CPU session on one graph. Raises BundleError for a graph that ONNX Runtime can't load, naming the file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Both keep memory for every shape that they have met, and the shapes of a growing text are all new.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Warnings go to stderr, into the middle of the text that is being read.
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exceptions have no common base.
        reason = str(error).strip().splitlines()[0]
        raise BundleError(f"{path.name} can't be loaded by ONNX Runtime {onnxruntime.__version__}: {reason}") from error
