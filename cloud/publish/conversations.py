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


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt and its answer."""

    prompt: str
    answer: str


class ChatFormat:
    """Turns conversations into ids as the device does: the chat template, then the tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokenizer = Tokenizer.from_str(files.tokenizer_json)
        self._tokenizer.no_truncation()
        self._chat = PreTrainedTokenizerFast(tokenizer_object=self._tokenizer, chat_template=files.template)

    def answered_ids(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """The ids of a conversation's prompt, and those of its answer."""
        messages = [{"role": "user", "content": conversation.prompt}]
        prompt = str(self._chat.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        return self._encode(prompt), self._encode(conversation.answer)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def read_conversations(paths: Sequence[Path]) -> list[Conversation]:
    """All records of the files, in order. Raises BadInput, which names file and line, for one that can't be used."""
    return [conversation for path in paths for conversation in _read(path)]


def _read(path: Path) -> Iterator[Conversation]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
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
        answer = next((record[key] for key in ANSWER_KEYS if isinstance(record.get(key), str) and record[key]), None)
        if answer is None:
            raise BadInput(f"{path}, line {number}: no answer; give one of {', '.join(ANSWER_KEYS)}")
        yield Conversation(prompt, answer)


def _prompt(record: dict[str, Any]) -> str | None:
    for key in PROMPT_KEYS:
        value = record.get(key)
        if isinstance(value, list) and value:
            value = value[0]["content"] if isinstance(value[0], dict) and "content" in value[0] else value[0]
        if isinstance(value, str) and value.strip():
            return value
    return None
