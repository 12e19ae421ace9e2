"""Rotary position tables for the static kinds of rope scaling.

Sources: Su et al. 2021 (RoPE); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); the Llama 3.1 release (llama3).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput

STATIC_KINDS = ("default", "linear", "llama3", "yarn")


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_type`, `rope_theta` and the kind's own numbers, from config.json as transformers 4 or 5 writes it.

    Raises BadInput for a kind that depends on the length of the text, by name.
    """
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = settings.pop("type", None)
    settings.setdefault("rope_type", kind or "default")
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if settings["rope_type"] not in STATIC_KINDS:
        raise BadInput(f"rope kind {settings['rope_type']!r} is not supported; {', '.join(STATIC_KINDS)} are")
    settings.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return settings


def rotary_tables(
    config: Mapping[str, Any], head_dim: int, positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines for positions 0 .. positions - 1: two float32 `[positions, head_dim / 2]`."""
    settings = rope_settings(config)
    theta = float(settings["rope_theta"])
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    scale = 1.0
    match settings["rope_type"]:
        case "linear":
            frequencies = frequencies / settings["factor"]
        case "llama3":
            frequencies = _llama3(frequencies, settings)
        case "yarn":
            frequencies, scale = _yarn(frequencies, settings, head_dim, theta), _yarn_scale(settings)
    # float32 all through, as the reference computes it: angles near 2000 lose the same digits.
    angles = np.outer(np.arange(positions, dtype=np.float32), frequencies.astype(np.float32))
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)


def _llama3(frequencies: NDArray[Any], settings: Mapping[str, Any]) -> NDArray[Any]:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor, original = settings["factor"], settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    turns = original * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    blended: NDArray[Any] = (1 - blend) * frequencies / factor + blend * frequencies
    return blended


def _yarn(frequencies: NDArray[Any], settings: Mapping[str, Any], head_dim: int, theta: float) -> NDArray[Any]:
    """Dimensions that turn often within the original context are kept, slow ones stretched, with a ramp between."""
    original = settings["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(settings.get("beta_fast") or 32), dimension(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    blended: NDArray[Any] = frequencies / settings["factor"] * ramp + frequencies * (1 - ramp)
    return blended


def _yarn_scale(settings: Mapping[str, Any]) -> float:
    """YaRN's attention temperature, as a factor on cosines and sines."""
    given = settings.get("attention_factor")
    if given is not None:
        return float(given)

    def temperature(weight: float) -> float:
        return 1.0 if settings["factor"] <= 1 else 0.1 * weight * math.log(settings["factor"]) + 1.0

    weight, weight_all = settings.get("mscale"), settings.get("mscale_all_dim")
    return temperature(weight) / temperature(weight_all) if weight and weight_all else temperature(1.0)
