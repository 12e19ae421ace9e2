"""A manifest to change one field of."""

from typing import Any

from shared.bundle import FORMAT, BundleIdentity, FileEntry, Manifest


def sample_identity(**changes: Any) -> BundleIdentity:
    fields: dict[str, Any] = {"weights": "a" * 64, "tokenizer": "b" * 64, "template": "c" * 64, "head": "d" * 64}
    return BundleIdentity(**{**fields, "cut": 2, **changes})


def sample_manifest(**changes: Any) -> Manifest:
    """A valid manifest of a model of four layers, cut at 2."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "identity": sample_identity(),
        "name": "tiny",
        "licence": "mit",
        "architecture": "llama",
        "n_layers": 4,
        "cut": 2,
        "hidden_size": 64,
        "n_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "draft_vocab_size": 300,
        "max_context": 128,
        "bos_id": 0,
        "stop_ids": (2,),
        "weight_format": "q4",
        "exporter": "fast",
        "graph": "model.onnx",
        "exit_block": "the last block",
        "n_exit_blocks": 1,
        "head_context": None,
        "files": {"model.onnx": FileEntry(5, "e" * 64)},
    }
    return Manifest(**{**fields, **changes})
