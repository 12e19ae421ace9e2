"""A GGUF model in Hugging Face terms: its configuration and its tensors' names, undoing llama.cpp's conversion.

Source: llama.cpp's convert_hf_to_gguf.py and gguf-py's tensor mapping.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud.gguf_file import GgufFile, GgufTensor
from shared.errors import BadInput

# GGUF's architecture -> (transformers' model type, whether rows of q and k are interleaved for ggml's rope).
_ARCHITECTURES = {"llama": ("llama", True), "qwen2": ("qwen2", False), "qwen3": ("qwen3", False)}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufModel:
    """A GGUF file with Hugging Face names. Raises BadInput for a model that isn't supported, by name."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = str(file.metadata.get("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            supported = ", ".join(_ARCHITECTURES)
            raise BadInput(f"{file.path}: architecture {self.architecture} is not supported; {supported} are")
        if "token_embd.weight" not in file.tensors:
            raise BadInput(f"{file.path} holds no weights (no token_embd.weight); take a GGUF file of a whole model")
        self._model_type, self._interleaved = _ARCHITECTURES[self.architecture]
        self._stored_names = {self._name(stored): stored for stored in file.tensors}
        self.config = self._config()

    @property
    def names(self) -> frozenset[str]:
        """The Hugging Face names of all tensors."""
        return frozenset(self._stored_names)

    def tensor(self, name: str) -> GgufTensor:
        """The tensor with this Hugging Face name, its rows in Hugging Face order."""
        tensor = self.file.tensors[self._stored_names[name]]
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if not self._interleaved or heads is None:
            return tensor
        return GgufTensor(tensor.kind, tensor.data[_halves_order(len(tensor.data), self.config[heads])])

    def _name(self, stored: str) -> str:
        if stored in _OUTER_NAMES:
            return _OUTER_NAMES[stored]
        match = _BLOCK.fullmatch(stored)
        if match is None or match[2] not in _BLOCK_NAMES:
            raise BadInput(f"{self.file.path}: tensor {stored} is not supported; use the model's safetensors folder")
        return f"model.layers.{match[1]}.{_BLOCK_NAMES[match[2]]}.{match[3]}"

    def _of_model(self, key: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise BadInput(f"{self.file.path} lacks {self.architecture}.{key}")
        return value

    def _config(self) -> dict[str, Any]:
        """The configuration as in a Hugging Face config.json."""
        metadata = self.file.metadata
        heads, hidden = int(self._of_model("attention.head_count")), int(self._of_model("embedding_length"))
        config = {
            "model_type": self._model_type,
            "vocab_size": len(self.file.tensors["token_embd.weight"].data),
            "hidden_size": hidden,
            "intermediate_size": int(self._of_model("feed_forward_length")),
            "num_hidden_layers": int(self._of_model("block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self._of_model("attention.head_count_kv", heads)),
            "head_dim": int(self._of_model("attention.key_length", hidden // heads)),
            "rms_norm_eps": float(self._of_model("attention.layer_norm_rms_epsilon", 1e-6)),
            "rope_theta": float(self._of_model("rope.freq_base", 10000.0)),
            "rope_scaling": self._rope_scaling(),
            "max_position_embeddings": int(self._of_model("context_length")),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        }
        if self._model_type == "llama":
            config["attention_bias"] = "blk.0.attn_q.bias" in self.file.tensors
        return config

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self._of_model("rope.scaling.type", "none")
        if kind == "none":
            return None
        scaling = {"rope_type": kind, "factor": float(self._of_model("rope.scaling.factor", 1.0))}
        original = self._of_model("rope.scaling.original_context_length", 0)
        if original:
            scaling["original_max_position_embeddings"] = int(original)
        return scaling


def _halves_order(rows: int, heads: int) -> NDArray[np.int64]:
    """Hugging Face's row order (two halves per head) in terms of ggml's (pairs side by side)."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
