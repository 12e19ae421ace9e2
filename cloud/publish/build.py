"""Building a device's bundle: source, split, export, tokenizer, manifest; all or nothing."""

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cloud.distil.head import ExitHead
from cloud.publish.draft_vocabulary import default_size, draft_ids
from cloud.publish.exit_block import CALIBRATION_CHAT, exit_shift
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_file import ready_exit
from cloud.publish.exit_head import TrainedHead
from cloud.publish.fast_graph import write_fast_graph
from cloud.publish.portable_graph import write_portable_graph
from cloud.publish.split import check_cut, model_shape, split
from cloud.publish.tokenizer_files import TokenizerFiles, tokenizer_files
from cloud.source import ModelSource
from cloud.target import load_target
from shared.bundle import (
    DRAFT_IDS_NAME,
    EXPORTERS,
    FORMAT,
    MANIFEST_NAME,
    TEMPLATE_NAME,
    TOKENIZER_NAME,
    WEIGHT_FORMATS,
    BundleIdentity,
    FileEntry,
    Manifest,
    Progress,
    sha256_file,
)
from shared.errors import BadInput

DEFAULT_CONTEXT = 2048
# MatMulNBits' accuracy levels: what the inputs of 4-bit layers are rounded to, and how wide the blocks may be.
# In float32 the operator has no kernel for 8 bits: those weights (a GGUF's head) are kept as the same float32 numbers.
_ACCURACY_LEVELS = {"int8": 4, "fp32": 1}
_MAX_BITS = {"int8": 8, "fp32": 4}


def build_bundle(
    source: ModelSource,
    cut: int,
    out: Path,
    exporter: str = "fast",
    weights: str = "q4",
    max_context: int = DEFAULT_CONTEXT,
    activations: str = "int8",
    draft_vocabulary: int | None = None,
    exit_file: Path | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write the bundle of `source` cut after `cut` layers into the folder `out`, replacing a bundle that is there.

    `weights` is "q4" (a GGUF's own 4- and 8-bit blocks exactly, else rounded to 4 bits) or "fp32". `activations` is
    "int8", which is fast, and also rounds the draft head to 4 bits, or "fp32", which keeps q4 within rounding of the
    same weights in torch. `draft_vocabulary` is how many tokens can be drafted; None leaves it to the head's share of
    the cost. `exit_file` is what `edgewise-cloud distil` or `fit` wrote; None takes what ships for this model and
    cut, if there is something, else a shift measured here. The portable exporter has fp32 weights and the whole
    vocabulary only. Raises BadInput for what can't be built; `out` is as it was then.
    """
    _check(source, cut, out, exporter, weights, max_context, activations)
    vocab_size = int(source.config["vocab_size"])
    if exporter == "portable":
        if draft_vocabulary not in (None, vocab_size):
            raise BadInput("the portable exporter drafts from the whole vocabulary; leave --draft-vocabulary out")
        draft_vocabulary = vocab_size
    report = progress or _silent
    report("load the model", 0, 1)
    files = tokenizer_files(source)
    max_bits = _MAX_BITS[activations] if weights == "q4" else 0
    made, head_context = ready_exit(source, cut, max_bits, exit_file)
    trained = made if isinstance(made, TrainedHead) else None
    n_exit_blocks = 1 if trained is None else len(trained.blocks)
    drafted = draft_ids(
        vocab_size,
        draft_vocabulary or default_size(source.config, cut + n_exit_blocks),
        files.stop_ids,
        () if trained is None else trained.frequent.tolist(),
    )
    # The fast graph is written from the source's own tensors, so only what runs the model waits for it.
    model = load_target(source, torch.float32) if made is None or exporter == "portable" else None
    report("load the model", 1, 1)
    if made is None:
        assert model is not None, "it was loaded to be measured"
        report("measure the exit block", 0, 1)
        made = ExitEntry(None, exit_shift(model, calibration_ids(files), cut))
        report("measure the exit block", 1, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        (folder / TOKENIZER_NAME).write_bytes(files.tokenizer_json.encode())
        (folder / TEMPLATE_NAME).write_bytes(files.template.encode())
        if exporter == "fast":
            del model
            half = split(source, cut, max_bits, made, drafted if len(drafted) < vocab_size else None)
            graph = write_fast_graph(half, max_context, _ACCURACY_LEVELS[activations], folder, progress)
        else:
            assert model is not None, "it was loaded to be exported"
            report("export", 0, 1)
            graph = write_portable_graph(model, cut, ExitHead.of(model, made), folder)
            report("export", 1, 1)
        if len(drafted) < vocab_size:
            (folder / DRAFT_IDS_NAME).write_bytes(drafted.astype("<i4").tobytes())
        head = _head_hash(source, cut, made, drafted)
        manifest = replace(
            _manifest(source, cut, files, head, graph, exporter, weights, max_context),
            draft_vocab_size=len(drafted),
            exit_block=made.description,
            n_exit_blocks=n_exit_blocks,
            head_context=head_context,
            files=_entries(folder),
        )
        # The manifest comes last: a folder with one is whole.
        (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        if out.exists():
            out.rename(Path(scratch) / "old")
        folder.rename(out)
    return manifest


def _check(
    source: ModelSource, cut: int, out: Path, exporter: str, weights: str, max_context: int, activations: str
) -> None:
    check_cut(source.config, cut)
    for name, value, known in (
        ("exporter", exporter, EXPORTERS),
        ("weights", weights, WEIGHT_FORMATS),
        ("activations", activations, tuple(_ACCURACY_LEVELS)),
    ):
        if value not in known:
            raise BadInput(f"{name} {value!r} is not known; use {' or '.join(known)}")
    if exporter == "portable" and weights != "fp32":
        raise BadInput("the portable exporter writes fp32 weights only; add --weights fp32")
    limit = source.config["max_position_embeddings"]
    if not 16 <= max_context <= limit:
        raise BadInput(f"a context of {max_context} tokens is not possible; use 16 to {limit}, the model's own")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST_NAME).is_file())):
        raise BadInput(f"{out} exists and is no bundle; name another folder, or remove it")


def _manifest(
    source: ModelSource,
    cut: int,
    files: TokenizerFiles,
    head: str,
    graph: str,
    exporter: str,
    weights: str,
    max_context: int,
) -> Manifest:
    """What the source and the options settle; the exit and the files are filled in by the caller."""
    shape = model_shape(source.config)
    return Manifest(
        format=FORMAT,
        identity=BundleIdentity(
            weights=source.weights_sha256,
            tokenizer=_sha256(files.tokenizer_json.encode()),
            template=_sha256(files.template.encode()),
            cut=cut,
            head=head,
        ),
        name=source.name,
        licence=source.licence,
        architecture=source.config["model_type"],
        n_layers=shape.n_layers,
        cut=cut,
        hidden_size=shape.hidden_size,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        draft_vocab_size=shape.vocab_size,
        max_context=max_context,
        bos_id=files.bos_id,
        stop_ids=files.stop_ids,
        weight_format=weights,
        exporter=exporter,
        graph=graph,
        exit_block="the last block",
        n_exit_blocks=1,
        head_context=None,
        files={graph: FileEntry(0, "0" * 64)},
    )


def _head_hash(source: ModelSource, cut: int, made: ExitEntry | TrainedHead, drafted: NDArray[np.int32]) -> str:
    """The exit is settled by its description and numbers, the source's weights, the cut and the tokens drafted."""
    settled = f"{made.description}:{source.weights_sha256}:{cut}:".encode()
    return _sha256(settled + made.to_bytes() + drafted.astype("<i4").tobytes())


def calibration_ids(files: TokenizerFiles) -> list[list[int]]:
    """The fixed conversations that the exit block is measured on, as token ids."""
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    texts = ["\n\n".join(pair) for pair in CALIBRATION_CHAT]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def _entries(folder: Path) -> dict[str, FileEntry]:
    return {path.name: FileEntry(path.stat().st_size, sha256_file(path)) for path in sorted(folder.iterdir())}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _silent(stage: str, done: int, total: int) -> None:
    pass
