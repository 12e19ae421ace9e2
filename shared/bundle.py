"""The device's bundle: what its manifest says, and whether the files in the folder are those it names.

A bundle is a folder with `manifest.json`, the ONNX graph, the tokenizer and the chat template.
"""

import hashlib
import json
import string
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, Self

from shared.errors import BundleError

# (stage, done, total): what long work reports as it goes on.
Progress = Callable[[str, int, int], None]

FORMAT = 4
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
DRAFT_IDS_NAME = "draft_ids.i32"
EXPORTERS = ("fast", "portable")
WEIGHT_FORMATS = ("q4", "fp32")
_CHUNK = 1 << 20
_HEX = frozenset(string.hexdigits.lower())


@dataclass(frozen=True, slots=True)
class BundleIdentity:
    """What both sides must have in common before a token travels (hazard 16).

    All but `cut` are sha256 hex digests: of the source's weight files, of tokenizer.json, of the chat template's
    text and of the exit block. `cut` is the number of layers that the device runs before the exit block.
    """

    weights: str
    tokenizer: str
    template: str
    cut: int
    head: str

    @property
    def id(self) -> str:
        """32 hex digits over all fields."""
        return hashlib.sha256(json.dumps(self.to_wire()).encode()).hexdigest()[:32]

    def differences(self, other: "BundleIdentity") -> tuple[str, ...]:
        """The names of the fields that differ, in their order here."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    def to_wire(self) -> list[Any]:
        """The fields in their order, as they stand in Hello and Welcome."""
        return [self.weights, self.tokenizer, self.template, self.cut, self.head]

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """The identity in `[weights, tokenizer, template, cut, head]`; ValueError if it isn't one."""
        if not isinstance(value, list) or len(value) != 5:
            raise ValueError("a bundle identity is [weights, tokenizer, template, cut, head]")
        weights, tokenizer, template, cut, head = value
        for name, digest in (("weights", weights), ("tokenizer", tokenizer), ("template", template), ("head", head)):
            if not isinstance(digest, str) or not is_sha256(digest):
                raise ValueError(f"the bundle's {name} is not a sha256 in lower-case hex")
        if not isinstance(cut, int) or isinstance(cut, bool) or cut < 1:
            raise ValueError("the bundle's cut is not a positive number of layers")
        return cls(weights, tokenizer, template, cut, head)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the bundle: its size in bytes and its sha256."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that the device needs to know about a bundle before it opens the graph.

    `cut` layers and `n_exit_blocks` at the exit have a KV cache each, for keys and for values, of
    `[1, n_kv_heads, max_context, head_dim]`. `head_context` is the longest context that a trained exit has seen;
    None means untrained (hazard 19).
    The head is for `draft_vocab_size` tokens; where those are not all, the file `draft_ids.i32` lists them in ascending
    order, as little-endian int32, and tokens that stand in the conversation can be drafted as well. `graph` names the
    ONNX file; its external weights are among `files`, which lists everything but the manifest.
    """

    format: int
    identity: BundleIdentity
    name: str
    licence: str
    architecture: str
    n_layers: int
    cut: int
    hidden_size: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_context: int
    bos_id: int | None
    stop_ids: tuple[int, ...]
    weight_format: str
    exporter: str
    graph: str
    exit_block: str
    n_exit_blocks: int
    head_context: int | None
    files: dict[str, FileEntry]

    @property
    def n_caches(self) -> int:
        """Blocks with a KV cache: the layers below the cut and the exit's blocks."""
        return self.cut + self.n_exit_blocks

    def to_json(self) -> str:
        """The text of manifest.json."""
        record = asdict(self)
        record["id"] = self.identity.id
        return json.dumps(record, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse and check manifest.json; raises BundleError, which says what is wrong with it."""
        try:
            record = json.loads(text)
        except ValueError as error:
            raise BundleError(f"{MANIFEST_NAME} is not JSON ({error}); build or pull the bundle again") from None
        if not isinstance(record, dict):
            raise BundleError(f"{MANIFEST_NAME} is not a JSON object; build or pull the bundle again")
        if record.get("format") != FORMAT:
            raise BundleError(
                f"{MANIFEST_NAME} has format {record.get('format')!r}; this program reads format {FORMAT}: "
                "build the bundle again, or update the program"
            )
        values = {f.name: _field(record, f.name) for f in fields(cls)}
        manifest = cls(**values)
        if record.get("id") != manifest.identity.id:
            raise _wrong("id", "the id that follows from `identity`")
        if manifest.cut != manifest.identity.cut or not 1 <= manifest.cut <= manifest.n_layers:
            raise _wrong("cut", f"the identity's cut, from 1 to {manifest.n_layers}")
        if manifest.draft_vocab_size > manifest.vocab_size:
            raise _wrong("draft_vocab_size", f"at most vocab_size, which is {manifest.vocab_size}")
        if manifest.draft_vocab_size < manifest.vocab_size and DRAFT_IDS_NAME not in manifest.files:
            raise _wrong("files", f"a list with {DRAFT_IDS_NAME}, since not all tokens can be drafted")
        if manifest.graph not in manifest.files:
            raise _wrong("graph", "one of `files`")
        return manifest


def is_sha256(text: str) -> bool:
    """Whether this is a sha256 in lower-case hex."""
    return len(text) == 64 and _HEX.issuperset(text)


def sha256_file(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """The file's sha256 in hex; `advance` is told the size of each piece read, in bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            if advance is not None:
                advance(len(piece))
    return digest.hexdigest()


def load_manifest(folder: Path) -> Manifest:
    """Read `manifest.json`; BundleError if there is none, or it can't be used."""
    path = folder / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BundleError(f"{folder} holds no {MANIFEST_NAME}; build or pull a bundle there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} can't be read: {error}") from None
    return Manifest.from_json(text)


def verify_files(folder: Path, manifest: Manifest, progress: Progress | None = None) -> None:
    """Check size and sha256 of every file; BundleError names the first that is missing, truncated or changed."""
    total = sum(entry.bytes for entry in manifest.files.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("verify", done, total)

    for name, entry in sorted(manifest.files.items()):
        path = folder / name
        if not path.is_file():
            raise BundleError(f"{name} is missing from the bundle {folder}; build or pull it again")
        size = path.stat().st_size
        if size < entry.bytes:
            raise BundleError(f"{name} is truncated: {size} of {entry.bytes} bytes; build or pull the bundle again")
        if size != entry.bytes or sha256_file(path, advance) != entry.sha256:
            raise BundleError(f"{name} has changed: it is not the file that the manifest names; build or pull it again")


def _wrong(name: str, wanted: str) -> BundleError:
    return BundleError(f"{MANIFEST_NAME}: `{name}` must be {wanted}; build or pull the bundle again")


def _field(record: dict[str, Any], name: str) -> Any:
    """One field of the manifest, checked and in its Python type."""
    if name not in record:
        raise BundleError(f"{MANIFEST_NAME} lacks `{name}`; build or pull the bundle again")
    value = record[name]
    match name:
        case "identity":
            names = [f.name for f in fields(BundleIdentity)]
            if not isinstance(value, dict) or sorted(value) != sorted(names):
                raise _wrong(name, f"an object with {', '.join(names)}")
            try:
                return BundleIdentity.from_wire([value[key] for key in names])
            except ValueError as error:
                raise _wrong(name, f"valid: {error}") from None
        case "files":
            return _files(value)
        case "stop_ids":
            if not isinstance(value, list) or not all(_is_count(item, 0) for item in value):
                raise _wrong(name, "a list of token ids")
            return tuple(value)
        case "bos_id" | "head_context":
            if value is not None and not _is_count(value, 0):
                raise _wrong(name, "a number or null")
        case "exporter":
            if value not in EXPORTERS:
                raise _wrong(name, f"one of {', '.join(EXPORTERS)}")
        case "weight_format":
            if value not in WEIGHT_FORMATS:
                raise _wrong(name, f"one of {', '.join(WEIGHT_FORMATS)}")
        case "name" | "licence" | "architecture" | "graph" | "exit_block":
            if not isinstance(value, str) or not value:
                raise _wrong(name, "a text")
        case _:
            if not _is_count(value, 1):
                raise _wrong(name, "a positive number")
    return value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _files(value: object) -> dict[str, FileEntry]:
    if not isinstance(value, dict):
        raise _wrong("files", "an object of {name: {bytes, sha256}}")
    entries: dict[str, FileEntry] = {}
    for name, entry in value.items():
        if not _stays_inside(name) or name == MANIFEST_NAME:
            raise _wrong("files", f"names of files inside the bundle, which {name!r} is not")
        if (
            not isinstance(entry, dict)
            or sorted(entry) != ["bytes", "sha256"]
            or not _is_count(entry["bytes"], 0)
            or not isinstance(entry["sha256"], str)
            or not is_sha256(entry["sha256"])
        ):
            raise _wrong(f"files.{name}", "{bytes, sha256}")
        entries[name] = FileEntry(entry["bytes"], entry["sha256"])
    return entries


def _stays_inside(name: str) -> bool:
    """Whether a file name from a manifest can only mean a file below the bundle's folder."""
    parts: Sequence[str] = PurePosixPath(name).parts
    return bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts and "\\" not in name
