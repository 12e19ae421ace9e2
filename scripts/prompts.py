"""Prompts for benchmarks and tests: from a file that the user names, or a few of our own."""

import json
from pathlib import Path
from typing import Any

from shared.errors import BadInput

OWN = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h? Show your steps.",
    "Summarise: The cat sat on the mat. The mat was red. The cat liked the red mat because the mat was warm.",
    "Write a short, polite email that asks for a day off next Friday.",
    "List five uses of a brick, one a line.",
)


def load_prompts(path: Path | None, count: int) -> list[str]:
    """Up to `count` prompts, spread evenly over a JSONL file with `turns`, `user`, `question` or `prompt`.

    Raises BadInput for a file that holds none.
    """
    if path is None:
        return list(OWN[:count])
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read as JSON lines: {error}") from error
    found = [text for text in map(_prompt, lines) if text]
    if not found:
        raise BadInput(f"{path} has no line with turns, user, question or prompt")
    count = min(count, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def _prompt(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    if isinstance(turns, list) and turns:
        return str(turns[0])
    for name in ("user", "question", "prompt"):
        if isinstance(record.get(name), str):
            return str(record[name])
    return None
