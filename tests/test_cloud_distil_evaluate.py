"""An exit's figures: what can be known by another way agrees with it, and what can't be measured is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud.__main__ import main
from cloud.distil.evaluation import TEMPERATURE, Answer, Evaluation, Places
from cloud.distil.figures import group, summarise
from cloud.distil.head import ExitHead
from cloud.distil.vocabulary import DraftVocabulary
from cloud.publish.exit_entry import ExitEntry
from cloud.source import resolve_source
from tests.exit_reference import exit_reference
from tests.tiny_checkpoints import write_gguf
from tests.tiny_models import tiny_model
from tests.trained_heads import write_head

CUT = 2
LISTED = torch.arange(0, 60)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", torch.float32)


def places(model: Any, listed: torch.Tensor, prompt: list[int], answer: list[int]) -> Places:
    entry = ExitEntry(None, np.linspace(-0.5, 0.5, model.config.hidden_size, dtype=np.float32))
    vocabulary = DraftVocabulary(listed, model.lm_head.weight.detach())
    return Evaluation(model, ExitHead.of(model, entry), CUT, vocabulary).read(Answer((*prompt,), (*answer,)))


def test_hits_are_those_of_the_exit_fed_token_by_token(model: Any) -> None:
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 40).tolist()
    got = places(model, LISTED, ids[:10], ids[10:])
    entry = ExitEntry(None, np.linspace(-0.5, 0.5, model.config.hidden_size, dtype=np.float32))
    drafts, _ = exit_reference(model, ids[:-1], CUT, entry)
    with torch.inference_mode():
        targets = model(torch.tensor([ids[:-1]])).logits[0].numpy()
    for i, at in enumerate(range(9, 39)):
        allowed = sorted({*LISTED.tolist(), *ids[: at + 1]})
        draft = np.full_like(drafts[at], -np.inf)
        draft[allowed] = drafts[at][allowed]
        wanted = int(targets[at].argmax())
        assert got.covered[i] == (wanted in allowed)
        assert got.greedy[i] == (int(draft.argmax()) == wanted)
        assert got.top4[i] == (wanted in np.argsort(-draft)[:4])
        p, q = (np.exp(row / TEMPERATURE - (row / TEMPERATURE).max()) for row in (targets[at], draft))
        assert got.overlap[i] == pytest.approx(np.minimum(p / p.sum(), q / q.sum()).sum(), abs=1e-4)


def test_a_perfect_exit_hits_wherever_the_token_can_be_drafted(model: Any) -> None:
    """The head is the rest of the model, so under the shared noise too it chooses what the model does."""
    rest = model.config.num_hidden_layers - CUT
    head = ExitHead(model, rest, ExitEntry(None, np.zeros(model.config.hidden_size, np.float32)))
    whole = model.lm_head.weight.detach()
    ids = np.random.default_rng(1).integers(0, len(whole), 30).tolist()
    answer = Answer((*ids[:5],), (*ids[5:],))
    got = Evaluation(model, head, CUT, DraftVocabulary(torch.arange(len(whole)), whole)).read(answer)
    assert got.greedy.all() and got.top4.all() and got.coupled.all() and got.overlap.min() > 0.999
    part = Evaluation(model, head, CUT, DraftVocabulary(LISTED, whole)).read(answer)
    assert (part.greedy == part.covered).all() and not part.covered.all()


def test_the_shared_noise_reaches_no_more_than_rejection_sampling_on_average(model: Any) -> None:
    ids = np.random.default_rng(2).integers(0, model.config.vocab_size, 1500).tolist()
    got = [places(model, LISTED, ids[at : at + 10], ids[at + 10 : at + 300]) for at in range(0, 1200, 300)]
    figures = summarise(got)
    assert 0 < figures["coupled_over_max"] <= 1.1
    assert figures["sampled"]["most_by_rejection_sampling"] == pytest.approx(
        np.concatenate([part.overlap for part in got]).mean(), abs=1e-4
    )


def test_figures_are_over_all_and_by_kind_of_task() -> None:
    def made(category: str, hits: str) -> Places:
        array = np.array([letter == "x" for letter in hits])
        return Places(category, array, array, array, array, array.astype(float))

    figures = summarise([made("a", "xx.x"), made("b", "....")])
    assert figures["answers"] == 2 and figures["places"] == 8
    assert figures["first_position_acceptance"] == 0.375 and figures["coupled_over_max"] == 1
    assert figures["by_category"]["a"]["tokens_per_pass"]["1"] == pytest.approx(4 / 3, abs=1e-4)
    assert figures["by_category"]["b"]["tokens_per_pass"]["8"] == 1
    assert figures["by_category"]["a"]["acceptance_by_depth"][:2] == [1, 0.5]


def test_mt_benchs_own_kinds_count_as_one() -> None:
    assert [group(name) for name in ("writing", "math", "rag", None)] == ["mt_bench", "mt_bench", "rag", "all"]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    model = write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    digest = resolve_source(str(tmp_path / "m.gguf"), tmp_path).weights_sha256
    write_head(tmp_path / "head", model, digest, 1, 2)
    lines = [json.dumps({"turns": [f"what is {n}?"], "category": "ab"[n % 2]}) for n in range(8)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "m.gguf")


def test_the_command_writes_table_and_figures_and_keeps_the_answers(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--model", checkpoint, "--head", str(tmp_path / "head"), "--data"]
    command += [str(tmp_path / "data.jsonl"), "--count", "4", "--max-tokens", "10", "--vocabulary", "60"]
    command += ["--threads", "1", "--dtype", "fp32", "--json", str(tmp_path / "out.json")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    figures = json.loads((tmp_path / "out.json").read_text())
    assert set(figures["tokens_per_pass"]) == {str(length) for length in range(1, 9)}
    assert {"first_position_acceptance", "top4", "coupled_over_max", "by_category"} <= set(figures)
    assert figures["cut"] == 1 and figures["draft_vocabulary"] == 60 and len(figures["acceptance_by_depth"]) == 8
    assert f"{figures['tokens_per_pass']['6']:.2f} tokens a pass with 6 drafts" in shown
    (answers,) = (tmp_path / "home" / "answers").iterdir()
    kept = answers.read_bytes()
    assert main(command) == 0
    assert answers.read_bytes() == kept and json.loads((tmp_path / "out.json").read_text()) == figures


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cut", "1"], "no exit ships for this model and a cut of 1; name one with --head"),
        (["--cut", "4"], "no exit ships"),
        (["--head", "nowhere"], "nowhere is no exit head or entry"),
        (["--head", __file__], "is no exit head or entry"),
        (["--head", "HEAD", "--count", "0"], "--max-tokens and --count must be 1 or more"),
        (["--head", "HEAD", "--vocabulary", "1"], "a draft vocabulary of 1 tokens is not possible"),
        (["--head", "HEAD", "--json", "/nowhere/at.json"], "its folder isn't there"),
    ],
)
def test_what_cant_be_measured_is_refused(
    flags: list[str], message: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(tmp_path / "head") if flag == "HEAD" else flag for flag in flags]
    assert main(["evaluate", "--model", checkpoint, "--data", str(tmp_path / "data.jsonl"), *named]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
