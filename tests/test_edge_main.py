"""The device's command line: bad input gets a sentence and an exit code, and nothing starts."""

import json
from pathlib import Path

import pytest

from edge.__main__ import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path))
    monkeypatch.delenv("EDGEWISE_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "hi", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["run", "  "], "is empty; say something"),
        (["run", "hi", "--max-tokens", "many"], "invalid int value: 'many'"),
        (["run", "hi", "--placement", "moon"], "invalid Placement value: 'moon'"),
        (["sing"], "invalid choice: 'sing'"),
        ([], "COMMAND"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_a_usage_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no bundle in"),
        (["--temperature", "-1"], "temperature is -1.0; it must be 0 (greedy)"),
        (["--top-p", "0"], "top_p is 0.0; it must be above 0, at most 1"),
        (["--hidden", "int1"], "--hidden int1 is no codec; use fp32 or fp16"),
        (["--bundle", "nowhere"], "nowhere"),
        (["--bundle", ".", "--draft-length", "0"], "draft length 0"),
        (["--bundle", ".", "--max-tokens", "0"], "--max-tokens is 0"),
        (["--bundle", ".", "--hidden", "fp16", "--local"], "needs --placement edge, not local"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "hi", *arguments]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_the_environment_and_the_config_file_are_defaults(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_text("[device]\ntemperature = -3\n")
    assert main(["run", "hi", "--bundle", "."]) == 2
    assert "temperature is -3.0" in capsys.readouterr().err
    monkeypatch.setenv("EDGEWISE_TEMPERATURE", "-2")
    assert main(["run", "hi", "--bundle", "."]) == 2
    assert "temperature is -2.0" in capsys.readouterr().err
    assert main(["run", "hi", "--bundle", ".", "--temperature", "-1"]) == 2
    assert "temperature is -1.0" in capsys.readouterr().err
    (home / "config.toml").write_text("[device]\ntemprature = 1\n")
    assert main(["run", "hi", "--bundle", "."]) == 2
    assert "unknown setting 'temprature'" in capsys.readouterr().err


def test_a_damaged_bundle_is_refused_by_the_file_that_is_wrong(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "manifest.json").write_text(json.dumps({"format": 1}))
    assert main(["run", "hi", "--bundle", str(home)]) == 2
    assert "manifest.json" in capsys.readouterr().err
