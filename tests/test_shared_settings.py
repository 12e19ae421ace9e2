"""Flags over environment over config file over defaults."""

from pathlib import Path

import pytest

from shared.errors import BadInput
from shared.settings import Settings, home_folder, read_config_file


def test_the_environment_wins_over_the_file_and_the_file_over_the_default() -> None:
    settings = Settings({"EDGEWISE_MAX_TOKENS": "5"}, {"max_tokens": 6, "seed": 7})
    assert settings.default("max_tokens", 8) == "5"
    assert settings.default("seed", 8) == "7"
    assert settings.default("top_k", 8) == 8
    assert settings.default("cloud", None) is None


def test_only_prefixed_names_of_the_environment_count() -> None:
    assert Settings({"SEED": "5", "edgewise_seed": "6"}, {}).default("seed", 1) == 1


def test_an_empty_value_is_a_value() -> None:
    """So that a setting of the file can be taken back for one run."""
    assert Settings({"EDGEWISE_CLOUD": ""}, {"cloud": "ws://a"}).default("cloud", "ws://b") == ""


@pytest.mark.parametrize("value", ["1", "true", "YES", "On"])
def test_what_means_yes(value: str) -> None:
    assert Settings({"EDGEWISE_INSECURE": value}, {}).switch("insecure") is True


@pytest.mark.parametrize("value", ["0", "False", "no", "off", ""])
def test_what_means_no(value: str) -> None:
    assert Settings({"EDGEWISE_INSECURE": value}, {"insecure": True}).switch("insecure") is False


def test_a_switch_in_the_file_and_none_at_all() -> None:
    assert Settings({}, {"insecure": True}).switch("insecure") is True
    assert Settings({}, {"insecure": False}).switch("insecure") is False
    assert Settings({}, {}).switch("insecure") is False


def test_a_switch_that_is_neither_is_refused() -> None:
    with pytest.raises(BadInput, match="insecure is 'perhaps'; use yes or no"):
        Settings({"EDGEWISE_INSECURE": "Perhaps"}, {}).switch("insecure")


def test_a_name_in_the_file_that_no_option_reads_is_refused() -> None:
    settings = Settings({}, {"seed": 1, "tempature": 0.8})
    settings.default("seed", 0)
    settings.default("temperature", 0)
    with pytest.raises(BadInput, match="'tempature' in the config file; known: seed, temperature"):
        settings.refuse_unknown()
    settings.default("tempature", 0)
    settings.refuse_unknown()


def test_the_home_folder(tmp_path: Path) -> None:
    assert home_folder({"EDGEWISE_HOME": str(tmp_path)}) == tmp_path
    assert home_folder({"HOME": "/somewhere"}) == Path("/somewhere/.cache/edgewise")
    assert home_folder({"HOME": "/somewhere", "EDGEWISE_HOME": ""}) == Path("/somewhere/.cache/edgewise")


def test_a_config_file_gives_the_table_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[edgewise]\nseed = 5\n[cloud]\nport = 1\nmodel = "é"\n', encoding="utf-8")
    environment = {"EDGEWISE_HOME": str(tmp_path)}
    assert read_config_file(environment, "edgewise") == {"seed": 5}
    assert read_config_file(environment, "cloud") == {"port": 1, "model": "é"}
    assert read_config_file(environment, "other") == {}


def test_no_config_file_is_no_problem_unless_it_was_named(tmp_path: Path) -> None:
    assert read_config_file({"EDGEWISE_HOME": str(tmp_path)}, "edgewise") == {}
    with pytest.raises(BadInput, match=r"gone\.toml can't be read"):
        read_config_file({"EDGEWISE_CONFIG": str(tmp_path / "gone.toml")}, "edgewise")


def test_the_named_config_file_is_read_instead_of_the_one_at_home(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[edgewise]\nseed = 5\n", encoding="utf-8")
    (tmp_path / "other.toml").write_text("[edgewise]\nseed = 6\n", encoding="utf-8")
    environment = {"EDGEWISE_HOME": str(tmp_path), "EDGEWISE_CONFIG": str(tmp_path / "other.toml")}
    assert read_config_file(environment, "edgewise") == {"seed": 6}


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"edgewise = 5\n"], ids=["toml", "utf-8", "table"])
def test_a_config_file_that_can_not_be_used_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(BadInput, match=r"config\.toml"):
        read_config_file({"EDGEWISE_HOME": str(tmp_path)}, "edgewise")
