"""The bundle's tokenizer.json and chat template, checked against an independent reference before they ship."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cloud.gguf_file import GgufFile
from cloud.publish.reference_bpe import FAMILY_PATTERNS, ReferenceBpe
from cloud.safetensors_folder import read_json
from cloud.source import ModelSource, SourceKind
from shared.errors import BadInput

# Where tokenizers are known to differ: digits, contractions, spaces, code, other scripts, line ends, special tokens.
AWKWARD_TEXTS = (
    "Hello, world!",
    "In 1984 it cost 1,234,567.89 dollars, 50% of 007",
    "I'm sure they'll say it's what we'd've DON'T",
    "  two leading, three   inside, trailing  ",
    "tabs\tand\n\nblank lines\r\nand CRLF\r\n",
    "def f(x):\n    return x**2  # comment\n\n\nclass A: pass",
    '{"key": [1, 2.5e-3, null], "url": "https://example.org/a?b=c&d=%20#e"}',
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 😀😀 and a lone ▁ bar",
    "日本語のテキスト、中文字符,한국어 문장",
    "naïve café Ünïcödé Привет мир שלום مرحبا",
    "x" * 70 + " " * 20 + "=" * 30,
    "<|im_start|>user\nhi<|im_end|>\n",
    "½ ² ① ٣ ३ 12³",
)
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The text of both files, and the special ids that generation needs."""

    tokenizer_json: str
    template: str
    bos_id: int | None
    stop_ids: tuple[int, ...]


def tokenizer_files(source: ModelSource) -> TokenizerFiles:
    """Make both files from the source.

    Raises BadInput for a tokenizer that isn't supported, or doesn't encode as its family's reference does.
    """
    return _from_gguf(source) if source.kind is SourceKind.GGUF else _from_folder(source)


def check_tokenizer(tokenizer: Tokenizer, reference: Callable[[str], list[int]], where: str) -> None:
    """Raises BadInput, which shows the text, where ids differ from the reference or the text doesn't come back."""
    for text in AWKWARD_TEXTS:
        ids, wanted = tokenizer.encode(text, add_special_tokens=False).ids, reference(text)
        if ids != wanted:
            raise BadInput(f"{where}: the tokenizer encodes {text!r} as {ids}, its family's reference as {wanted}")
    text = AWKWARD_TEXTS[7]
    if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids).strip() != text:
        raise BadInput(f"{where}: the tokenizer does not give {text!r} back")


def byte_level_tokenizer(
    tokens: list[str], merges: list[str], specials: Mapping[str, bool], family: str, ignore_merges: bool
) -> Tokenizer:
    """A byte-level BPE tokenizer. `specials` says of each added token whether decoding should skip it."""
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=ignore_merges))
    *first, last = FAMILY_PATTERNS[family]
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (*first, last)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(False, use_regex=False)])
    if family == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    for token, skipped in specials.items():
        added = AddedToken(token, special=skipped, normalized=False)
        (tokenizer.add_special_tokens if skipped else tokenizer.add_tokens)([added])
    return tokenizer


def _from_gguf(source: ModelSource) -> TokenizerFiles:
    metadata = GgufFile(source.path).metadata
    kind, family = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or family not in FAMILY_PATTERNS:
        raise BadInput(
            f"{source.path}: tokenizer {kind}/{family} is not supported; "
            f"byte-level BPE of {', '.join(FAMILY_PATTERNS)} is, or use the model's safetensors folder"
        )
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    types = metadata["tokenizer.ggml.token_type"]
    specials = {t: k == _CONTROL for t, k in zip(tokens, types, strict=True) if k in (_CONTROL, _USER_DEFINED)}
    whole_words = family == "llama-bpe"
    tokenizer = byte_level_tokenizer(tokens, merges, specials, family, whole_words)
    reference = ReferenceBpe(tokens, merges, list(specials), family, whole_words)
    check_tokenizer(tokenizer, reference.encode, str(source.path))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    stops = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    names = {"bos_token": _token(tokens, bos), "eos_token": _token(tokens, stops[0])}
    return TokenizerFiles(
        tokenizer.to_str(),
        _with_names(metadata.get("tokenizer.chat_template") or _PLAIN_TEMPLATE, names),
        bos,
        tuple(sorted({stop for stop in stops if stop is not None})),
    )


def _from_folder(source: ModelSource) -> TokenizerFiles:
    from transformers import AutoTokenizer

    try:
        original = AutoTokenizer.from_pretrained(source.path, local_files_only=True)
        tokenizer = Tokenizer.from_str(original.backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{source.path} has no tokenizer that can be used: {str(error).splitlines()[0]}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if "ByteLevel" in json.dumps(json.loads(tokenizer.to_str())["pre_tokenizer"]):
        # Converted tokenizers keep SentencePiece's decoder, which turns a real "▁" into a space.
        tokenizer.decoder = decoders.ByteLevel()
    check_tokenizer(
        tokenizer, lambda text: list(original(text, add_special_tokens=False)["input_ids"]), str(source.path)
    )
    stops: list[int] = []
    generation = source.path / "generation_config.json"
    for record in (source.config, read_json(generation) if generation.is_file() else {}):
        ids = record.get("eos_token_id")
        stops += ids if isinstance(ids, list) else [] if ids is None else [ids]
    names = {"bos_token": original.bos_token, "eos_token": original.eos_token}
    template = original.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return TokenizerFiles(
        tokenizer.to_str(),
        _with_names(template or _PLAIN_TEMPLATE, names),
        source.config.get("bos_token_id"),
        tuple(sorted(set(stops))),
    )


def _with_names(template: str, names: Mapping[str, str | None]) -> str:
    """The template, made to know the special tokens that it names: the device renders it from messages alone."""
    used = {name: token for name, token in names.items() if name in template and token is not None}
    return "".join(f"{{%- set {name} = {json.dumps(token)} %}}" for name, token in used.items()) + template


def _token(tokens: list[str], token_id: Any) -> str | None:
    return None if token_id is None else tokens[token_id]
