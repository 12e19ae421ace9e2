"""Tiny models of each supported family as files: Hugging Face folders and GGUF files with random weights."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
LAYERS = 4
CONTEXT = 256
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
_TEXT = ["hello world, this is a small text for a small tokenizer", "the cat sat on the mat and 12 dogs looked on"]


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json record: 4 layers, 4 heads over 2 KV heads."""
    settings: dict[str, Any] = {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        # Qwen3's heads are wider than the hidden size divided by their number.
        "head_dim": 32 if family == "qwen3" else 16,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": family != "mistral",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    return {**settings, **changes}


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE as GPT-2's, with a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def tokens_and_merges() -> tuple[list[str], list[str]]:
    """The tiny tokenizer's vocabulary by id, and its merges in order."""
    record = json.loads(tiny_tokenizer().to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in record["merges"]]
    return sorted(record["vocab"], key=record["vocab"].get), merges


def tiny_model(config: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """The model in fp32, every parameter random, so that no bias or norm is without effect."""
    settings = {"vocab_size": tiny_tokenizer().get_vocab_size(), **config}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if name.endswith("norm.weight") else 0.15 * noise)
    return model.eval()


def write_folder(folder: Path, family: str = "llama", **changes: Any) -> PreTrainedModel:
    """A Hugging Face folder with weights, tokenizer and template; the model that is in it."""
    model = tiny_model(tiny_config(family, **changes))
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    record = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[0], "eos_token": SPECIALS[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**record, "chat_template": TEMPLATE}))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# tiny\n")
    return model


def write_gguf(path: Path, family: str = "llama", kind: str = "F32", **changes: Any) -> PreTrainedModel:
    """A GGUF file with matrices of `kind` (the embedding in Q8_0, if they are quantised); the model before rounding."""
    model = tiny_model(tiny_config(family, **changes))
    config = model.config
    architecture = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_license("mit")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    _add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = values.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if architecture == "llama" and heads is not None:
            # llama.cpp puts the two halves of each head side by side, in pairs.
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None
        _add_tensor(writer, stored, np.ascontiguousarray(array), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add_tensor(writer: Any, name: str, values: NDArray[Any], kind: str) -> None:
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, values)
        return
    wanted = gguf.GGMLQuantizationType["Q8_0" if name == "token_embd.weight" else kind]
    writer.add_tensor(name, quantize(values, wanted), raw_dtype=wanted)


def _add_tokenizer(writer: Any) -> None:
    tokens, merges = tokens_and_merges()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
