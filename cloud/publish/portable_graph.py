"""The portable graph: optimum's export of the device's layers in plain ONNX operators, float32 throughout.

The cache grows by concatenation and all rows get logits. It is slow, and the reference for the fast graph. Outputs:
logits `[1, T, vocab]`, `present.i.key` and `.value` `[1, kv heads, total, head_dim]`, hidden `[1, T, d]`.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from transformers import PreTrainedModel

from cloud.distil.head import ExitHead
from cloud.publish.weight_files import WeightFiles

GRAPH_STEM = "model"
_OPSET = 18


def write_portable_graph(model: PreTrainedModel, cut: int, head: ExitHead, folder: Path) -> str:
    """Write the graph and its weights into `folder`; the graph's file name. Cuts `model` itself down, for good."""
    from optimum.exporters.onnx import onnx_export_from_model

    _keep_device_half(model, cut, head)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, warnings.catch_warnings():
        # The tracer remarks on each of transformers' shape checks.
        warnings.simplefilter("ignore")
        onnx_export_from_model(
            model,
            output=scratch,
            opset=_OPSET,
            task="text-generation-with-past",
            custom_onnx_configs={"model": _export_config(model)},
            do_validation=False,
            no_post_process=True,
        )
        graph = onnx.load(Path(scratch) / "model.onnx")
    WeightFiles(folder, GRAPH_STEM).move_out(graph)
    (folder / f"{GRAPH_STEM}.onnx").write_bytes(graph.SerializeToString())
    return f"{GRAPH_STEM}.onnx"


def _keep_device_half(model: Any, cut: int, head: ExitHead) -> None:
    """Leave the first layers and the exit, and make `forward` return the residual at the cut as `hidden`."""
    blocks: list[Any] = list(head.blocks)
    for index, block in enumerate(blocks, start=cut):
        block.self_attn.layer_idx = index
    model.model.layers = torch.nn.ModuleList([*model.model.layers[:cut], *blocks])
    model.model.norm = head.norm
    count = cut + len(blocks)
    model.config.num_hidden_layers = count
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:count]
    model.requires_grad_(False)
    entry = head.entry.requires_grad_(False)
    kept: list[torch.Tensor] = []

    def enter_exit(block: Any, arguments: Any, named: Any) -> Any:
        kept.append(arguments[0])
        return (arguments[0] + entry(arguments[0]), *arguments[1:]), named

    blocks[0].register_forward_pre_hook(enter_exit, with_kwargs=True)
    whole = model.forward

    # On the instance: optimum refuses a class that transformers doesn't define. Names bind by position: hidden last.
    def forward(
        input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None
    ) -> Any:
        kept.clear()
        result = whole(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=True,
        )
        return {"logits": result.logits, "past_key_values": result.past_key_values, "hidden": kept[0]}

    model.forward = forward


def _export_config(model: Any) -> Any:
    """optimum's own configuration for the architecture, with one more output."""
    from optimum.exporters.onnx import model_configs

    known: dict[str, Any] = {
        "llama": model_configs.LlamaOnnxConfig,
        "mistral": model_configs.MistralOnnxConfig,
        "qwen2": model_configs.Qwen2OnnxConfig,
        "qwen3": model_configs.Qwen3OnnxConfig,
    }
    parent = known[model.config.model_type]

    def outputs(config: Any) -> dict[str, dict[int, str]]:
        return {**parent.outputs.fget(config), "hidden": {0: "batch_size", 1: "sequence_length"}}

    extended = type("WithHidden", (parent,), {"outputs": property(outputs)})
    return extended(model.config, task="text-generation", use_past=True, use_past_in_inputs=True)
