"""The real model, its bundle and its reference, loaded once for all tests that are marked `model`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from cloud.publish.build import build_bundle
from cloud.sequence import ModelShape
from cloud.source import ModelSource, resolve_source
from cloud.target import load_target
from cloud.torch_model import TorchModel
from cloud.verifier import Verifier
from edge.tokenizer import BundleTokenizer, Message
from shared.bundle import Manifest
from shared.settings import home_folder

MODEL = "smollm2-135m"
CUT = 27
CONTEXT = 1024


@dataclass(frozen=True)
class RealModel:
    """`reference` is transformers' own fp32 model; `verifier` runs another copy of it through the cloud's code."""

    source: ModelSource
    bundle: Path
    manifest: Manifest
    tokenizer: BundleTokenizer
    reference: PreTrainedModel
    target: TorchModel
    verifier: Verifier

    @property
    def shape(self) -> ModelShape:
        return ModelShape(self.manifest.vocab_size, self.manifest.hidden_size, CONTEXT)

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode_chat([Message("user", text)])

    def margin(self, tokens: Sequence[int]) -> float:
        """How far the reference's two best logits after `tokens` are apart."""
        with torch.no_grad():
            logits = self.reference(torch.tensor([list(tokens)])).logits[0, -1]
        best = torch.topk(logits, 2).values
        return float(best[0] - best[1])


def load_real_model(folder: Path) -> RealModel:
    """Take the pinned model (from the cache, where it is), build a bundle in `folder` and load both sides."""
    # With more, a machine that does something else beside the tests spends its time in barriers.
    torch.set_num_threads(1)
    source = resolve_source(MODEL, home_folder(os.environ), None)
    manifest = build_bundle(source, CUT, folder / "bundle", max_context=CONTEXT)
    target = TorchModel(load_target(source, torch.float32), cut=CUT, max_context=CONTEXT)
    return RealModel(
        source,
        folder / "bundle",
        manifest,
        BundleTokenizer(folder / "bundle"),
        load_target(source, torch.float32),
        target,
        Verifier(target),
    )
