"""Rotary tables against transformers' own, for each static kind."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cloud.publish.rotary import rotary_tables
from tests.tiny_checkpoints import tiny_config

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
KINDS: list[dict[str, Any]] = [
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
]


@pytest.mark.parametrize("scaling", KINDS, ids=lambda kind: str(kind.get("rope_type", "default")))
def test_tables_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    record = tiny_config("llama", rope_scaling=scaling or None, head_dim=64)
    settings = dict(record)
    config = AutoConfig.for_model(settings.pop("model_type"), vocab_size=32, **settings)
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    cosines, sines = rotary_tables(record, 64, 256)
    wanted_cosines, wanted_sines = rotary(torch.zeros(1, 1, 64), torch.arange(256)[None])
    # transformers repeats the half for both halves of a head.
    np.testing.assert_allclose(cosines, wanted_cosines[0, :, :32], atol=2e-5)
    np.testing.assert_allclose(sines, wanted_sines[0, :, :32], atol=2e-5)
