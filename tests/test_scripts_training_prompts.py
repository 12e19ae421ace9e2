"""Prompts of many kinds: each round reads what the one before wrote, and files of something else are refused."""

import json
from pathlib import Path

import pytest

from scripts.training_prompts import main

FACTS = [(f"Is fact {n} true?", "Yes", f"Fact {n} is about thing number {n}.") for n in range(12)]
SENTENCES = " ".join(f"This is sentence number {n} of a passage that goes on." for n in range(8))


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    (tmp_path / "facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in FACTS))
    return tmp_path / "facts.tsv"


def written(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_round_reads_what_the_one_before_wrote(facts: Path, tmp_path: Path) -> None:
    out = tmp_path / "passages.jsonl"
    assert main(["passages", "--facts", str(facts), "--count", "10", "--out", str(out)]) == 0
    prompts = written(out)
    assert len(prompts) == 10
    for prompt in prompts:
        assert FACTS[int(prompt["category"].split()[1])][2] in prompt["user"]
    answers = tmp_path / "written.jsonl"
    answers.write_text("\n".join(json.dumps({**prompt, "assistant": SENTENCES}) for prompt in prompts))
    tasks = tmp_path / "tasks.jsonl"
    assert main(["tasks", "--facts", str(facts), "--passages", str(answers), "--out", str(tasks)]) == 0
    made = written(tasks)
    kinds = [task["category"] for task in made]
    # Two of ten are German, each of which gives four texts to translate.
    assert (kinds.count("summarization"), kinds.count("rag"), kinds.count("translation")) == (8, 8, 8)
    for task in made:
        assert (SENTENCES in task["user"]) is (task["category"] != "translation")
        if task["category"] == "rag":
            assert any(question in task["user"] for question, _, _ in FACTS)
    again = tmp_path / "again.jsonl"
    assert main(["tasks", "--facts", str(facts), "--passages", str(answers), "--out", str(again)]) == 0
    assert again.read_bytes() == tasks.read_bytes()


def test_short_passages_are_left_out(facts: Path, tmp_path: Path) -> None:
    (tmp_path / "w").write_text(json.dumps({"user": "x", "category": "english 1", "assistant": "Too short."}))
    assert main(["tasks", "--facts", str(facts), "--passages", str(tmp_path / "w"), "--out", str(tmp_path / "o")]) == 0
    assert (tmp_path / "o").read_text() == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("facts.tsv", "only one column\n", "line 1: 1 columns; give question, answer and facts"),
        ("w", '{"assistant": "no category"}', "line 1: not an answer to a prompt for passages"),
        ("w", "[1]", "line 1: not an answer"),
        ("w", '{"category": "english x", "assistant": "a"}', "line 1: not an answer"),
    ],
)
def test_files_of_something_else_are_refused(
    name: str, content: str, message: str, facts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w").write_text("")
    (tmp_path / name).write_text(content)
    out = ["--out", str(tmp_path / "o")]
    assert main(["tasks", "--facts", str(facts), "--passages", str(tmp_path / "w"), *out]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "o").exists()
