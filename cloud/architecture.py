"""Which models can be cut: decided from the configuration alone, before any weight is read."""

from collections.abc import Mapping
from typing import Any

from cloud.publish.rotary import rope_settings
from shared.errors import BadInput

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


def check_supported(config: Mapping[str, Any], where: str) -> None:
    """Raises BadInput, naming what isn't supported: model type, sliding window, rope kind, activation, quantisation."""
    kind = config.get("model_type")
    if kind not in SUPPORTED:
        raise BadInput(f"{where}: model type {kind!r} is not supported; {', '.join(SUPPORTED)} are")
    window = config.get("sliding_window")
    # Qwen names a window that it doesn't use unless `use_sliding_window` says so.
    if kind in ("qwen2", "qwen3") and not config.get("use_sliding_window"):
        window = None
    if window is not None and window < config["max_position_embeddings"]:
        raise BadInput(
            f"{where}: a sliding window of {window} tokens is not supported; it must be off "
            f"or at least the context of {config['max_position_embeddings']}"
        )
    if "quantization_config" in config:
        raise BadInput(f"{where}: quantised safetensors are not supported; use the original weights or a GGUF file")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise BadInput(f"{where}: activation {activation!r} is not supported; silu is")
    rope_settings(config)
