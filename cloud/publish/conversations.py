"""Prompts and answers from JSONL files, as the token ids that the model reads."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cloud.publish.tokenizer_files import TokenizerFiles
from shared.errors import BadInput

PROMPT_KEYS = ("turns", "user", "question", "prompt", "instruction")
ANSWER_KEYS = ("assistant", "answer")
# Stands for the user's words in a chat template; no template has it.
_MARK = "\ufdd0"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt and its answer, and the kind of task if the file names it."""

    prompt: str
    answer: str
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt without an answer, and the kind of task if the file names it."""

    text: str
    category: str | None = None


class ChatFormat:
    """Turns conversations into ids as the device does: the chat template, then the tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokenizer = Tokenizer.from_str(files.tokenizer_json)
        self._tokenizer.no_truncation()
        self._chat = PreTrainedTokenizerFast(tokenizer_object=self._tokenizer, chat_template=files.template)

    def answered_ids(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """The ids of a conversation's prompt, and those of its answer."""
        return self.prompt_ids(conversation.prompt), self._encode(conversation.answer)

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids that the model reads before it answers."""
        return self._encode(self._render(prompt))

    def opening_ids(self) -> list[int]:
        """The ids up to where the user's words begin, for a model that is to write those too."""
        return self._encode(self._render(_MARK).partition(_MARK)[0])

    def text(self, ids: Sequence[int]) -> str:
        """The text of these ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _render(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return str(self._chat.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def read_conversations(paths: Sequence[Path]) -> list[Conversation]:
    """All records of the files, in order. Raises BadInput, which names file and line, for one that can't be used."""
    return [conversation for path in paths for conversation in _read(path)]


def read_prompts(paths: Sequence[Path]) -> list[Prompt]:
    """The prompts of all records, in order; of several turns the first. Raises BadInput as `read_conversations`."""
    return [Prompt(prompt, _category(record)) for path in paths for _, record, prompt in _records(path)]


def _read(path: Path) -> Iterator[Conversation]:
    for number, record, prompt in _records(path):
        answer = next((record[key] for key in ANSWER_KEYS if isinstance(record.get(key), str) and record[key]), None)
        if answer is None:
            raise BadInput(f"{path}, line {number}: no answer; give one of {', '.join(ANSWER_KEYS)}")
        yield Conversation(prompt, answer, _category(record))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Line number, record and prompt of each line that isn't empty."""
    try:
        # By newlines alone: JSON strings may hold other characters that Unicode counts as ends of lines.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadInput(f"{path}, line {number}: no JSON ({error.msg}); give one object a line") from error
        prompt = _prompt(record) if isinstance(record, dict) else None
        if not prompt:
            raise BadInput(f"{path}, line {number}: no prompt; give one of {', '.join(PROMPT_KEYS)}")
        yield number, record, prompt


def _category(record: dict[str, Any]) -> str | None:
    value = record.get("category")
    return value if isinstance(value, str) else None


def _prompt(record: dict[str, Any]) -> str | None:
    for key in PROMPT_KEYS:
        value = record.get(key)
        if isinstance(value, list) and value:
            value = value[0]["content"] if isinstance(value[0], dict) and "content" in value[0] else value[0]
        if isinstance(value, str) and value.strip():
            return value
    return None
