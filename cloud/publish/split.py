"""What goes to the device: the embedding, the first N layers, the exit block, the last norm and the head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from cloud.gguf_file import GgufFile
from cloud.gguf_model import GgufModel
from cloud.publish.device_block import Block, Linear, Weights, read_block
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_head import TrainedHead
from cloud.publish.q4_blocks import BlockWeights, carry_blocks, quantise
from cloud.safetensors_folder import SafetensorsFolder
from cloud.source import ModelSource, SourceKind
from shared.errors import BadInput


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that a graph is built from."""

    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float


@dataclass(frozen=True, slots=True)
class DeviceHalf:
    """The device's part of a model: the first N layers, and the exit.

    The first of `exit_blocks` reads the residual at the cut as `entry` moves it. `embedding` is `[vocab, d]`; `head`
    holds the rows of the tokens that can be drafted, and may be the same object. Where those are a part of the
    vocabulary, `head_table` has the rows of all, to look up those that stand in the conversation.
    """

    shape: ModelShape
    config: Mapping[str, Any]
    embedding: Weights
    blocks: tuple[Block, ...]
    entry: ExitEntry
    exit_blocks: tuple[Block, ...]
    norm: NDArray[np.float32]
    head: Weights
    head_table: Weights | None


class _Tensors:
    """Reads a source's tensors by Hugging Face name, in blocks or as float32."""

    def __init__(self, source: ModelSource, max_bits: int) -> None:
        self._max_bits = max_bits
        self._gguf = GgufModel(GgufFile(source.path)) if source.kind is SourceKind.GGUF else None
        if self._gguf is None:
            folder = SafetensorsFolder(source.path)
            files = folder.tensor_files()
            self.names = frozenset(files)
            self._read: Callable[[str], NDArray[np.float32]] = lambda name: folder.values(files[name], name)
        else:
            gguf = self._gguf
            self.names = gguf.names
            self._read = lambda name: gguf.tensor(name).values()
        self._path = source.path

    def vector(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32; BadInput if the source lacks it."""
        if name not in self.names:
            raise BadInput(f"{self._path} lacks the tensor {name}")
        return np.ascontiguousarray(self._read(name))

    def optional(self, name: str) -> NDArray[np.float32] | None:
        return self.vector(name) if name in self.names else None

    def matrix(self, name: str) -> Weights:
        """A weight matrix: a GGUF's own numbers, in blocks where they may be, else rounded to 4 bits."""
        if self._max_bits == 0:
            return self.vector(name)
        if self._gguf is not None and name in self.names:
            blocks = carry_blocks(self._gguf.tensor(name))
            if blocks is not None and blocks.bits <= self._max_bits:
                return blocks
            if blocks is not None:
                return blocks.values()
        return quantise(self.vector(name), GGMLQuantizationType.Q4_1)

    def linear(self, name: str) -> Linear:
        return Linear(self.matrix(name + ".weight"), self.optional(name + ".bias"))


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a config.json describes."""
    heads = config["num_attention_heads"]
    return ModelShape(
        n_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        n_heads=heads,
        n_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        eps=config["rms_norm_eps"],
    )


def check_cut(config: Mapping[str, Any], cut: int) -> None:
    """Raises BadInput unless at least one layer lies on each side of the cut."""
    layers = config["num_hidden_layers"]
    if not 1 <= cut < layers:
        raise BadInput(f"a cut at {cut} is not possible: the model has {layers} layers, so use 1 to {layers - 1}")


def split(
    source: ModelSource,
    cut: int,
    max_bits: int,
    exit: ExitEntry | TrainedHead,
    draft_ids: NDArray[np.int32] | None = None,
) -> DeviceHalf:
    """Read the device's part. Raises BadInput for a cut that can't be.

    With an entry alone, the model's own last block is the exit's. `draft_ids` are the tokens that the head is for; None
    means all.

    Matrices are in blocks of at most `max_bits`: 0 keeps all in float32, 4 those that a GGUF stores in 8 bits, 8 none.
    With 8, speed comes first, and the head is rounded to 4 bits: it is the most costly part of a drafted token, only
    drafts depend on it, and what it reads is rounded too.
    """
    check_cut(source.config, cut)
    tensors = _Tensors(source, max_bits)
    shape = model_shape(source.config)
    embedding = tensors.matrix("model.embed_tokens.weight")
    untied = "lm_head.weight" in tensors.names
    table = tensors.matrix("lm_head.weight") if untied else embedding
    if max_bits == 8:
        rows = tensors.vector("lm_head.weight" if untied else "model.embed_tokens.weight")
        head: Weights = quantise(rows if draft_ids is None else rows[draft_ids], GGMLQuantizationType.Q4_0)
    elif draft_ids is None:
        head = table
    else:
        head = table.take(draft_ids) if isinstance(table, BlockWeights) else table[draft_ids]
    if isinstance(exit, TrainedHead):
        entry, exit_blocks, norm = exit.entry, exit.blocks, exit.norm
    else:
        last = read_block(tensors, f"model.layers.{shape.n_layers - 1}.")
        entry, exit_blocks, norm = exit, (last,), tensors.vector("model.norm.weight")
    return DeviceHalf(
        shape=shape,
        config=source.config,
        embedding=embedding,
        blocks=tuple(read_block(tensors, f"model.layers.{layer}.") for layer in range(cut)),
        entry=entry,
        exit_blocks=exit_blocks,
        norm=norm,
        head=head,
        head_table=None if draft_ids is None else table,
    )
