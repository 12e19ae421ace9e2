"""Head files for tiny models, with random numbers in place of training."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloud.distil.head import ExitHead
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_head import HeadRecipe, save_head


def write_head(path: Path, model: Any, weights_sha256: str, cut: int, n_blocks: int, seed: int = 0) -> None:
    """A head whose numbers are near the model's own."""
    width = model.config.hidden_size
    random = np.random.default_rng(seed)
    matrix = random.normal(0, 0.1, (width, width)).astype(np.float32)
    head = ExitHead(model, n_blocks, ExitEntry(matrix, np.linspace(-0.5, 0.5, width, dtype=np.float32)))
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    frequent = random.permutation(model.config.vocab_size)[:50].astype(np.int32)
    recipe = HeadRecipe(weights_sha256, cut, n_blocks, "none", seed, 1, 1, 1e-3, 2, 50, 64, 0.5)
    save_head(path, head.exit_entry(), head.layers(), head.norm.weight.detach().numpy(), frequent, recipe)
