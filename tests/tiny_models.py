"""Small random models of every supported family, in fp32, and passes over them."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from cloud.batch import Work
from cloud.torch_model import TorchModel
from shared.params import SamplingParams

VOCAB = 96
HIDDEN = 64
LAYERS = 4
CUT = 2
CONTEXT = 700

# SmolLM is a Llama with a tied head.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "smollm": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mistral": ("mistral", {"head_dim": 16, "sliding_window": None}),
}


def tiny_model(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """transformers' model of a family, random but always the same."""
    kind, settings = FAMILIES[family]
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 160,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        # Large enough for the layers to matter and for the logits to be far apart.
        "initializer_range": 0.15,
    }
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **settings, **changes}))
    return model.requires_grad_(False).to(dtype).eval()


def taken_over(model: Any, pack: bool = True) -> TorchModel:
    """Our model over a copy of `model`, which stays as it is."""
    return TorchModel(copy.deepcopy(model), cut=CUT, max_context=CONTEXT, pack=pack)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def work(
    slot: int, start: int, ids: Sequence[int], targets_from: int = 0, hidden: NDArray[np.float32] | None = None
) -> Work:
    return Work(slot, start, tuple(ids), targets_from, SamplingParams(), 1, hidden)


def reference_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """transformers' own forward over the whole text: [tokens, vocab]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


def states_at_cut(model: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """The residuals that enter layer CUT, by transformers' own forward: [tokens, d]."""
    with torch.inference_mode():
        states = model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[CUT][0]
    return states.float().numpy()
