"""The bundle's tokenizer and chat template on files made in the test."""

from datetime import datetime
from pathlib import Path

import pytest

from edge.tokenizer import BundleTokenizer, Message
from shared.bundle import TEMPLATE_NAME, TOKENIZER_NAME
from shared.errors import BadInput, BundleError
from tests.byte_tokenizer import byte_level_tokenizer

TEMPLATE = """{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' + message['role']) }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def bundle(folder: Path, template: str = TEMPLATE) -> Path:
    tokenizer = byte_level_tokenizer(["hello there, hello again"], special=["<|im_start|>", "<|im_end|>"])
    (folder / TOKENIZER_NAME).write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / TEMPLATE_NAME).write_text(template, encoding="utf-8")
    return folder


def test_a_conversation_ends_where_the_answer_begins(tmp_path: Path) -> None:
    tokenizer = BundleTokenizer(bundle(tmp_path))
    messages = [Message("system", "Be brief."), Message("user", "hello <b> & 'you'")]
    assert tokenizer.render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nhello <b> & 'you'<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_of_the_template_are_single_ids(tmp_path: Path) -> None:
    """Hazard 16: the template writes all special tokens, and the tokenizer adds none."""
    tokenizer = BundleTokenizer(bundle(tmp_path))
    ids = tokenizer.encode_chat([Message("user", "hello")])
    assert [token for token in ids if token in tokenizer.table.special] == [0, 1, 0]
    assert tokenizer.decode(ids) == "user\nhello\nassistant\n"


def test_plain_text_goes_there_and_back(tmp_path: Path) -> None:
    tokenizer = BundleTokenizer(bundle(tmp_path))
    text = "hello ▁ 日本 👋🏽\r\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_conversation_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    tokenizer = BundleTokenizer(bundle(tmp_path))
    with pytest.raises(BadInput, match="a conversation of user, wizard: unknown role wizard"):
        tokenizer.render([Message("user", "hi"), Message("wizard", "hi")])
    with pytest.raises(BadInput, match="at least one message"):
        tokenizer.render([])


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not valid Unicode at character 1"):
        BundleTokenizer(bundle(tmp_path)).encode("a\udc80")


def test_a_template_that_needs_an_unknown_token_is_refused(tmp_path: Path) -> None:
    """Hazard 16: an undefined bos_token would render as nothing, which is another prompt without an error."""
    folder = bundle(tmp_path, "{{ bos_token }}{{ messages[0].content }}")
    with pytest.raises(BundleError, match="uses bos_token"):
        BundleTokenizer(folder)
    bundle(tmp_path, "{%- set bos_token = '<s>' %}{{ bos_token }}{{ messages[0].content }}")
    assert BundleTokenizer(folder).render([Message("user", "hi")]) == "<s>hi"


def test_the_date_comes_from_the_clock(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    tokenizer = BundleTokenizer(folder, clock=lambda: datetime(2024, 7, 26))
    assert tokenizer.render([Message("user", "hi")]) == "26 Jul 2024"


def test_a_template_can_change_nothing_and_reach_nothing(tmp_path: Path) -> None:
    tokenizer = BundleTokenizer(bundle(tmp_path, "{{ messages.append(1) }}"))
    with pytest.raises(BadInput, match="refuses a conversation of user"):
        tokenizer.render([Message("user", "hi")])


def test_a_template_that_fails_by_itself_is_the_bundles_fault(tmp_path: Path) -> None:
    tokenizer = BundleTokenizer(bundle(tmp_path, "{{ 1 / 0 }}"))
    with pytest.raises(BundleError, match="fails on a conversation of user"):
        tokenizer.render([Message("user", "hi")])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (TEMPLATE_NAME, "{% for %}", "is no template"),
        (TOKENIZER_NAME, '{"version": "1.0"}', "is no tokenizer"),
        (TOKENIZER_NAME, "no JSON", "is no tokenizer"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    folder = bundle(tmp_path)
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(BundleError, match=f"{name}.* {words}"):
        BundleTokenizer(folder)


@pytest.mark.parametrize("name", [TEMPLATE_NAME, TOKENIZER_NAME])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    folder = bundle(tmp_path)
    (folder / name).unlink()
    with pytest.raises(BundleError, match=f"{name} can't be read"):
        BundleTokenizer(folder)
