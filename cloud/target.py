"""Loading the full model into transformers, from either kind of source."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from cloud.gguf_file import GgufFile
from cloud.gguf_model import GgufModel
from cloud.source import ModelSource, SourceKind
from shared.errors import BadInput


def load_target(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    """The model in eval mode, on the CPU, in `dtype`. Raises BadInput if its weights and configuration disagree."""
    try:
        model = _from_gguf(source.path, dtype) if source.kind is SourceKind.GGUF else _from_folder(source.path, dtype)
    except (RuntimeError, ValueError, OSError) as error:
        raise BadInput(f"{source.path}: the weights don't fit the configuration ({error})") from error
    model.requires_grad_(False)
    return model.eval()


def _from_folder(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    model, report = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, output_loading_info=True, local_files_only=True
    )
    # transformers fills what is missing with random numbers and only warns.
    if report["missing_keys"] or report["mismatched_keys"]:
        wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        raise ValueError(f"missing or of another shape: {', '.join(wrong[:3])}")
    return model


def _from_gguf(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    stored = GgufModel(GgufFile(path))
    config = config_of(stored.config)
    # Built without memory, then given the weights as they are.
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    weights = {name: torch.from_numpy(stored.tensor(name).values()).to(dtype) for name in stored.names}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True, strict=True)
    model.tie_weights()
    # Its tables are buffers that no file holds, so they are still without memory.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    return model


def config_of(record: dict[str, Any]) -> Any:
    """transformers' configuration object for a config.json record."""
    settings = dict(record)
    return AutoConfig.for_model(settings.pop("model_type"), **settings)
