"""What the size of the draft vocabulary is worth, on the real model."""

import json
from pathlib import Path

import pytest

from scripts.bench_vocabulary import main


@pytest.mark.model
def test_a_larger_list_covers_more_and_the_text_fills_up_what_is_missing(tmp_path: Path) -> None:
    prompts = ["Who wrote the opera Tosca?", "Translate to English: Ich heiße Berta."]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in prompts))
    options = ["--max-tokens", "12", "--sizes", "2048", "49152", "--json", str(tmp_path / "out.json")]
    assert main(["--data", str(tmp_path / "p.jsonl"), *options]) == 0
    small, whole = json.loads((tmp_path / "out.json").read_text())
    assert small["covered"] <= whole["covered"] == 1
    assert small["context_tokens"] > 0 and whole["context_tokens"] == 0
    assert small["draft_ms"] > 0 and small["tokens_per_pass"]["6"] >= 1


def test_what_cant_be_measured_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path))
    assert main(["--model", str(tmp_path / "nothing.gguf"), "--data", "nowhere"]) == 2
