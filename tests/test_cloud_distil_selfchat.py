"""The model writes text itself: its own greedy answers, in any batch, and work that was stopped goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloud.__main__ import main
from cloud.distil.selfchat import SelfChat, WritingPlan, write_file
from cloud.publish.conversations import ChatFormat, Prompt
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import resolve_source
from cloud.target import load_target
from tests.tiny_checkpoints import write_gguf

PROMPTS = [f"say {word}" for word in ("hello", "a", "yes and no", "much more than that, please", "2 + 2")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    lines = [json.dumps({"user": text, "category": "chat"}) for text in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))


def selfchat(tmp_path: Path, name: str, *flags: str) -> int:
    model, out = str(tmp_path / "m.gguf"), str(tmp_path / name)
    options = ["--max-tokens", "12", "--threads", "1", "--dtype", "fp32"]
    return main(["selfchat", "--model", model, "--out", out, *options, *flags])


def prompted(tmp_path: Path) -> list[str]:
    return ["--prompts", str(tmp_path / "prompts.jsonl")]


def records(path: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert len({record["number"] for record in found}) == len(found)
    return {record["number"]: record for record in found}


def test_answers_are_what_the_model_writes_token_by_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfchat(tmp_path, "out.jsonl", *prompted(tmp_path), "--batch", "2", "--json") == 0
    written = records(tmp_path / "out.jsonl")
    assert json.loads(capsys.readouterr().out)["conversations"] == len(written) > 0
    source = resolve_source(str(tmp_path / "m.gguf"), tmp_path)
    files = tokenizer_files(source)
    chat, model = ChatFormat(files), load_target(source, torch.float32)
    for number, record in written.items():
        prompt = chat.prompt_ids(PROMPTS[number])
        ids = list(prompt)
        while len(ids) < len(prompt) + 12 and (len(ids) == len(prompt) or ids[-1] not in files.stop_ids):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))  # type: ignore[operator]
        assert record["assistant"] == chat.text(ids[len(prompt) :])
        assert record["user"] == PROMPTS[number] and record["category"] == "chat"
        assert record["complete"] is (ids[-1] in files.stop_ids)


@pytest.mark.parametrize("flags", [["--temperature", "0.9", "--top-k", "20"], []])
def test_a_stopped_file_is_filled_up_to_the_same_conversations(flags: list[str], tmp_path: Path) -> None:
    """What a conversation says depends on its number alone: not on the batch, nor on what was there already."""
    options = [*prompted(tmp_path), "--seed", "3", *flags]
    assert selfchat(tmp_path, "whole.jsonl", *options) == 0
    whole = records(tmp_path / "whole.jsonl")
    first, *_ = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "part.jsonl").write_text(first + '{"number": 1, "us')
    assert selfchat(tmp_path, "part.jsonl", *options, "--batch", "1") == 0
    assert records(tmp_path / "part.jsonl") == whole


def test_a_file_that_lacks_nothing_is_left_without_loading_the_model(tmp_path: Path) -> None:
    lines = [json.dumps({"number": n, "user": text, "assistant": "a"}) + "\n" for n, text in enumerate(PROMPTS)]
    (tmp_path / "out.jsonl").write_text("".join(lines))

    def refuse() -> SelfChat:
        raise AssertionError("nothing is to be written")

    prompts = [Prompt(text) for text in PROMPTS]
    assert write_file(refuse, tmp_path / "out.jsonl", prompts, WritingPlan(), lambda done, total: None) == len(PROMPTS)


def test_without_prompts_the_model_plays_the_user_as_well(tmp_path: Path) -> None:
    assert selfchat(tmp_path, "out.jsonl", "--count", "4") == 0
    written = records(tmp_path / "out.jsonl")
    assert written and set(written) <= set(range(4))
    assert all(record["user"] and record["assistant"] for record in written.values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--count", "0"], "--count is 0"),
        (["--batch", "0"], "must be 1 or more"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl can't be read"),
    ],
)
def test_what_cant_be_written_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfchat(tmp_path, "out.jsonl", *flags) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"user": "x"}\n', "was not written by selfchat"),
        ('{"number": 7}\n', "was not written by selfchat"),
        ('{"number": 7, "user": "x"}\n', "has a conversation 7, and 5 are wanted"),
        ('{"number": 1, "user": "x"}\n', "conversation 1 answers another prompt"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.jsonl").write_text(content)
    assert selfchat(tmp_path, "out.jsonl", *prompted(tmp_path)) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out.jsonl").read_text() == content
