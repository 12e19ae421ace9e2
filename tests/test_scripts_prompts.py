"""Prompts from a file that the user names."""

import json
from pathlib import Path

import pytest

from scripts.bench_decode import summarise
from scripts.prompts import OWN, load_prompts
from shared.errors import BadInput


def test_each_known_field_gives_a_prompt_spread_over_the_file(tmp_path: Path) -> None:
    records = [{"turns": ["a", "b"]}, {"user": "c"}, {"question": "d"}, {"prompt": "e"}, {"other": "f"}, {"turns": []}]
    records.append({"prompt": "g"})
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    assert load_prompts(file, 10) == ["a", "c", "d", "e", "g"]
    assert load_prompts(file, 3) == ["a", "c", "e"]
    assert load_prompts(file, 2) == ["a", "d"]
    assert load_prompts(None, 2) == list(OWN[:2])


@pytest.mark.parametrize("content", ["{", '{"other": 1}', "[1, 2]"])
def test_a_file_without_prompts_is_refused_by_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput, match="prompts.jsonl"):
        load_prompts(file, 1)


def test_means_are_weighted_by_tokens() -> None:
    stages = dict.fromkeys(("draft", "send", "queue", "verify", "link", "commit"), 1.0)
    common = {"acceptance_by_depth": [0.5], "bytes_up_per_token": 1.0, "bytes_down_per_token": 2.0, "ttft_ms": 3.0}
    reports = [
        {**common, "completion_tokens": 10, "tokens_per_s": 10.0, "cloud_passes": 5, "stage_ms": stages},
        {**common, "completion_tokens": 30, "tokens_per_s": 10.0, "cloud_passes": 5, "stage_ms": stages},
    ]
    made = summarise(reports)
    assert (made["tokens"], made["tokens_per_s"], made["tokens_per_pass"]) == (40, 10.0, 4.0)
    assert made["passes_per_token"] == 0.25
