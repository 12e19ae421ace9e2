"""Where an option's value comes from: flags over environment over config file over defaults."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import BadInput

PREFIX = "EDGEWISE_"


class Settings:
    """The environment and the config file, as defaults for a command line.

    `max_tokens` is EDGEWISE_MAX_TOKENS in the environment and `max_tokens` in the file. Values come back as text, so
    that the command line's own types check them.
    """

    def __init__(self, environment: Mapping[str, str], file: Mapping[str, Any]) -> None:
        self._environment = environment
        self._file = file
        self._known: set[str] = set()

    def default(self, name: str, fallback: Any) -> Any:
        """The value for `name` as text, or `fallback` where neither source has it."""
        self._known.add(name)
        value = self._environment.get(PREFIX + name.upper(), self._file.get(name))
        return fallback if value is None else str(value)

    def switch(self, name: str) -> bool:
        """Whether `name` is switched on. Raises BadInput for a value that is neither yes nor no."""
        value = str(self.default(name, "no")).lower()
        if value in ("1", "true", "yes", "on"):
            return True
        if value in ("", "0", "false", "no", "off"):
            return False
        raise BadInput(f"{name} is {value!r}; use yes or no")

    def refuse_unknown(self) -> None:
        """Raises BadInput for a name in the config file that no option reads."""
        unknown = sorted(set(self._file) - self._known)
        if unknown:
            raise BadInput(
                f"unknown setting {unknown[0]!r} in the config file; known: {', '.join(sorted(self._known))}"
            )


def home_folder(environment: Mapping[str, str]) -> Path:
    """Where models and bundles are kept: EDGEWISE_HOME, or ~/.cache/edgewise."""
    chosen = environment.get(PREFIX + "HOME")
    return Path(chosen) if chosen else Path(environment.get("HOME", "~")).expanduser() / ".cache" / "edgewise"


def read_config_file(environment: Mapping[str, str], program: str) -> dict[str, Any]:
    """The `[program]` table of the TOML file named by EDGEWISE_CONFIG, or of config.toml in the home folder.

    Raises BadInput for a file that can't be read.
    """
    chosen = environment.get(PREFIX + "CONFIG")
    path = Path(chosen) if chosen else home_folder(environment) / "config.toml"
    if not chosen and not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(program, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"the config file {path} can't be read: {error}") from error
    if not isinstance(table, dict):
        raise BadInput(f"[{program}] in {path} must be a table of settings")
    return table
