"""From a conversation to token ids and back, with the tokenizer and the chat template of the bundle."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edge.detokenizer import Detokenizer
from edge.token_bytes import TokenBytes, token_bytes
from shared.bundle import TEMPLATE_NAME, TOKENIZER_NAME
from shared.errors import BadInput, BundleError


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; roles are those that the template knows: usually system, user, assistant."""

    role: str
    content: str


class BundleTokenizer:
    """The bundle's tokenizer.json and chat_template.jinja; `clock` is for templates that write the date.

    Raises BundleError for files that are missing or can't be used, and for a template that names a special token
    without saying which it is: it would silently render another prompt (hazard 16).
    """

    def __init__(self, folder: Path, clock: Callable[[], datetime] = datetime.now) -> None:
        text = _read(folder / TOKENIZER_NAME)
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:
            # The library raises bare exceptions for anything that it can't read.
            raise BundleError(f"{TOKENIZER_NAME} is no tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.table: TokenBytes = token_bytes(json.loads(text))
        self._clock = clock
        self._template = self._compile(_read(folder / TEMPLATE_NAME))

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as the model reads it, ending where the assistant's answer begins.

        Raises BadInput, which names the roles, for a conversation that the template refuses.
        """
        roles = ", ".join(message.role for message in messages)
        if not messages:
            raise BadInput("the conversation is empty; it needs at least one message")
        try:
            return self._template.render(messages=[asdict(message) for message in messages], add_generation_prompt=True)
        except TemplateError as error:
            raise BadInput(f"the chat template refuses a conversation of {roles}: {error}") from error
        except Exception as error:
            # A template is a program; whatever it does to itself is a fault of its own.
            raise BundleError(f"{TEMPLATE_NAME} fails on a conversation of {roles}: {error!r}") from error

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of the rendered conversation; the template has written all special tokens already."""
        return self._encode(self.render(messages), add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """The token ids of plain text, with what the tokenizer itself puts around a text."""
        return self._encode(text, add_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return Detokenizer(self.table).text_of(ids)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the text is not valid Unicode at character {error.start}; give UTF-8") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _compile(self, source: str) -> Template:
        # The environment that Hugging Face renders chat templates in (transformers, chat_template_utils).
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: self._clock().strftime(form)
        try:
            wanted = meta.find_undeclared_variables(environment.parse(source))
            template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise BundleError(f"{TEMPLATE_NAME} is no template: {error}, line {error.lineno}") from error
        for name in sorted(wanted & {"bos_token", "eos_token"}):
            raise BundleError(f"{TEMPLATE_NAME} uses {name} and doesn't set it; build the bundle again")
        return template


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path.name} can't be read: {error}; build or pull the bundle again") from error


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=False, indent=indent)
