"""Which exit a bundle gets: the file that was named, or the one that ships for the model and the cut, or none."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from cloud.publish.exit_entry import ExitEntry, load_entry
from cloud.publish.exit_head import TrainedHead, is_head, load_head
from cloud.source import ModelSource
from shared.bundle import sha256_file
from shared.errors import BadInput

# Exits that ship: a folder for each model, with a file for each cut.
SHIPPED = Path(__file__).parent / "exits"


def ready_exit(
    source: ModelSource, cut: int, max_bits: int, exit_file: Path | None
) -> tuple[ExitEntry | TrainedHead | None, int | None]:
    """The exit that was named or ships, and the longest text that it was made on; else None for both."""
    path = exit_file or shipped_exit(source.weights_sha256, cut)
    if path is None:
        return None, None
    width = int(source.config["hidden_size"])
    if is_head(path):
        head = load_head(path, source.weights_sha256, cut, width, max_bits, sha256_file(path))
        return head, head.recipe.longest
    entry, recipe = load_entry(path, source.weights_sha256, cut, width)
    return entry, recipe.longest


def shipped_exit(weights_sha256: str, cut: int) -> Path | None:
    """The file that ships for this model and cut, an entry or a trained head, or None."""
    for path in sorted(SHIPPED.glob(f"*/cut{cut}.safetensors")):
        with safe_open(path, "numpy") as file:
            if json.loads(file.metadata()["recipe"])["weights_sha256"] == weights_sha256:
                return path
    return None


def exit_cut(path: Path) -> int:
    """The cut that an exit's file was made for. Raises BadInput for a file of another kind."""
    try:
        with safe_open(path, "numpy") as file:
            return int(json.loads(file.metadata()["recipe"])["cut"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is no exit head or entry: {error}; `distil` and `fit` write them") from error
