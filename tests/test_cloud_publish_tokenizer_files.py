"""Tokenizers in bundles against independent references."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from cloud.publish.reference_bpe import FAMILY_PATTERNS, ReferenceBpe
from cloud.publish.tokenizer_files import AWKWARD_TEXTS, byte_level_tokenizer, check_tokenizer, tokenizer_files
from cloud.source import resolve_source
from shared.errors import BadInput
from tests.tiny_checkpoints import SPECIALS, TEMPLATE, tiny_tokenizer, tokens_and_merges, write_folder, write_gguf


@pytest.mark.parametrize("family", FAMILY_PATTERNS)
def test_tokenizer_agrees_with_a_plain_implementation(family: str) -> None:
    """Hazard 16: digits, contractions, spaces, emoji, scripts, CRLF, URLs and code give the family's ids."""
    tokens, merges = tokens_and_merges()
    tokenizer = byte_level_tokenizer(tokens, merges, dict.fromkeys(SPECIALS, True), family, False)
    check_tokenizer(tokenizer, ReferenceBpe(tokens, merges, SPECIALS, family, False).encode, family)
    for text in AWKWARD_TEXTS[:11]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_reference_agrees_with_gpt2s_own_pre_tokenizer() -> None:
    tokens, merges = tokens_and_merges()
    reference = ReferenceBpe(tokens, merges, SPECIALS, "gpt-2", False)
    for text in AWKWARD_TEXTS:
        assert reference.encode(text) == tiny_tokenizer().encode(text).ids


def test_families_differ_where_they_should() -> None:
    """Digits one by one (SmolLM), in threes (Llama 3) or together (GPT-2)."""
    tokens, merges = tokens_and_merges()

    def words(family: str, text: str) -> list[str]:
        return ReferenceBpe(tokens, merges, [], family, False)._words(text)

    assert words("gpt-2", "a 12345") == ["a", " 12345"]
    assert words("smollm", "a 12345") == ["a", " ", "1", "2", "3", "4", "5"]
    assert words("llama-bpe", "a 12345") == ["a", " ", "123", "45"]
    assert words("qwen2", "DON'T") == ["DON", "'T"]
    assert words("gpt-2", "DON'T") == ["DON", "'", "T"]


def test_other_tokenizer_is_refused_with_the_text() -> None:
    tokens, merges = tokens_and_merges()
    tokenizer = byte_level_tokenizer(tokens, merges, {}, "gpt-2", False)
    reference = ReferenceBpe(tokens, merges, [], "smollm", False)
    with pytest.raises(BadInput, match="encodes .* as .*, its family's reference as"):
        check_tokenizer(tokenizer, reference.encode, "model")


def test_files_of_a_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    files = tokenizer_files(resolve_source(str(tmp_path / "m.gguf"), tmp_path))
    assert (files.bos_id, files.stop_ids, files.template) == (0, (2,), TEMPLATE)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    # A converted tokenizer's decoder turns this character into a space.
    assert tokenizer.decode(tokenizer.encode("a ▁ b").ids) == "a ▁ b"
    assert tokenizer.encode("<|im_end|>").ids == [2]


def test_files_of_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    files = tokenizer_files(resolve_source(str(tmp_path), tmp_path))
    assert (files.bos_id, files.stop_ids, files.template) == (0, (2,), TEMPLATE)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    assert tokenizer.encode("the cat, 12 ▁").ids == tiny_tokenizer().encode("the cat, 12 ▁").ids
    assert tokenizer.decode(tokenizer.encode("a ▁ b").ids) == "a ▁ b"


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(BadInput, match="has no tokenizer that can be used"):
        tokenizer_files(resolve_source(str(tmp_path), tmp_path))


def test_template_knows_the_tokens_it_names(tmp_path: Path) -> None:
    """The device renders a template from messages alone."""
    write_folder(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    record = {**json.loads(config.read_text()), "chat_template": "{{ bos_token }}hi"}
    config.write_text(json.dumps(record))
    files = tokenizer_files(resolve_source(str(tmp_path), tmp_path))
    assert files.template == '{%- set bos_token = "<|endoftext|>" %}{{ bos_token }}hi'
