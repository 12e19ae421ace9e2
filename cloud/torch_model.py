"""The full model over a ragged batch: Hugging Face's own layers, with our attention, KV cache and loop around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloud.attention import NAME, SdpaAttention, Segment
from cloud.batch import Work
from cloud.kv_cache import KvCache, KvShape, SlotCache
from cloud.packed_linear import pack_linears


@dataclass(frozen=True, slots=True)
class _Placed:
    """A work and its place in a pass: its rows are `first` to `first + rows - 1`."""

    work: Work
    cache: SlotCache
    first: int

    @property
    def rows(self) -> int:
        return len(self.work.tokens)


class TorchModel:
    """A Llama-family model with a KV cache per slot. It takes the model over: attention and, on a CPU, linear layers.

    On a CPU a row's logits are the same to the bit however the rows are batched, where the linear layers could be
    packed. Not for use from several threads.
    """

    def __init__(
        self, model: Any, *, cut: int, max_context: int, device: str | torch.device = "cpu", pack: bool = True
    ) -> None:
        """`model` is a transformers causal language model in eval mode; `cut` is the layer at which states may join.

        `pack` may be set to False to keep plain linear layers on a CPU.
        """
        config = model.config
        layers = config.num_hidden_layers
        assert 0 < cut < layers, f"cut {cut} must lie between 1 and {layers - 1}"
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.max_context = max_context
        self.cut = cut
        self._device = torch.device(device)
        self._model = model.to(self._device)
        self._model.set_attn_implementation(NAME)
        self._dtype: torch.dtype = model.get_input_embeddings().weight.dtype
        if pack and self._device.type == "cpu":
            pack_linears(self._model)
        kv_heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._group = config.num_attention_heads // kv_heads
        self._kv = KvCache(KvShape(layers, cut, kv_heads, head_dim), max_context, self._dtype, self._device)

    def problem(self, work: Work) -> str | None:
        """Why `work` can't be run as it is, or None; running it all the same would be an error."""
        cache = self._kv.find(work.slot)
        held = cache.length if cache is not None else 0
        end = work.start + len(work.tokens)
        if not work.tokens:
            return "there are no rows to run"
        if work.start > held:
            return f"rows start at position {work.start}, but only {held} tokens are cached"
        if end > self.max_context:
            return f"rows end at position {end}; the context holds {self.max_context}"
        if work.hidden is None:
            if cache is not None and cache.joined:
                return f"this session's rows come with states at layer {self.cut}; token ids alone can't join it"
            return None
        if work.hidden.shape != (len(work.tokens), self.hidden_size):
            return f"states have shape {work.hidden.shape}; {(len(work.tokens), self.hidden_size)} is right"
        if not np.isfinite(work.hidden).all():
            return f"states at layer {self.cut} hold infinite or undefined values"
        return None

    @torch.inference_mode()
    def forward(self, works: Sequence[Work]) -> list[Tensor]:
        """Run one pass: for each work the logits after its wanted rows, float32 [wanted, vocab], on the device.

        Call it only with works that have no `problem`, at most one for a slot.
        """
        # Rows from ids come first, so that the layers below the cut run on a prefix of the rows.
        ordered = sorted(range(len(works)), key=lambda index: works[index].hidden is not None)
        placed = self._place([works[index] for index in ordered])
        ids = [p for p in placed if p.work.hidden is None]
        joining = [p for p in placed if p.work.hidden is not None]
        positions = torch.cat([torch.arange(p.work.start, p.work.start + p.rows) for p in placed])[None]
        positions = positions.to(self._device)  # [1, rows]
        body = self._model.model
        tokens = torch.tensor([[token for p in ids for token in p.work.tokens]], dtype=torch.long, device=self._device)
        x = body.embed_tokens(tokens)  # [1, id rows, d]
        cos_sin = body.rotary_emb(x, positions)
        if joining:
            if ids:
                lower = tuple(part[:, : x.shape[1]] for part in cos_sin)
                x = self._run(body.layers[: self.cut], x, ids, positions[:, : x.shape[1]], lower)
            states = np.concatenate([p.work.hidden for p in joining if p.work.hidden is not None])
            x = torch.cat([x, torch.from_numpy(states).to(self._device, self._dtype)[None]], dim=1)
            x = self._run(body.layers[self.cut :], x, placed, positions, cos_sin)
        else:
            x = self._run(body.layers, x, placed, positions, cos_sin)
        for p in placed:
            p.cache.length = p.work.start + p.rows
        wanted = [slice(p.first + p.work.targets_from, p.first + p.rows) for p in placed]
        logits = self._logits(torch.cat([x[0, rows] for rows in wanted]))
        split = logits.split([rows.stop - rows.start for rows in wanted])
        by_work = dict(zip(ordered, split, strict=True))
        return [by_work[index] for index in range(len(works))]

    def length(self, slot: int) -> int:
        """How many tokens the slot's KV cache holds."""
        cache = self._kv.find(slot)
        return 0 if cache is None else cache.length

    def free(self, slot: int) -> None:
        """Forget a slot; one that isn't there is no error."""
        self._kv.free(slot)

    def _place(self, works: Sequence[Work]) -> list[_Placed]:
        """Give each work its rows of the pass, and make its cache ready for them."""
        placed = []
        first = 0
        for work in works:
            cache = self._kv.slot(work.slot)
            cache.truncate(work.start)
            if work.hidden is not None:
                cache.join_at_cut()
            cache.reserve(work.start + len(work.tokens))
            placed.append(_Placed(work, cache, first))
            first += len(work.tokens)
        return placed

    def _run(
        self,
        layers: Sequence[Any],
        x: Tensor,
        placed: Sequence[_Placed],
        positions: Tensor,
        cos_sin: tuple[Tensor, ...],
    ) -> Tensor:
        """Residuals x [1, rows, d] through `layers`."""
        segments = [Segment(p.cache, p.first, p.rows, p.work.start) for p in placed]
        ragged = SdpaAttention(segments, self._group, self._dtype, self._device)
        for layer in layers:
            out = layer(
                x,
                attention_mask=None,
                position_ids=positions,
                use_cache=False,
                position_embeddings=cos_sin,
                ragged=ragged,
            )
            # A tensor in newer transformers, a tuple that begins with it in older ones.
            x = out[0] if isinstance(out, tuple) else out
        return x

    def _logits(self, x: Tensor) -> Tensor:
        """Final norm and head for x [wanted, d]: float32 [wanted, vocab]."""
        if not x.shape[0]:
            return x.new_empty(0, self.vocab_size, dtype=torch.float32)
        logits: Tensor = self._model.lm_head(self._model.model.norm(x))
        return logits.float()
