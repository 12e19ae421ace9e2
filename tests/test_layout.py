"""What the three packages may import, how they are packed, how long a file is, and who reads the environment."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("edge", "cloud", "shared")
MAX_LINES = 400


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_edge_and_shared_run_without_the_cloud_and_its_libraries() -> None:
    """A device has no torch: importing every module of edge and shared must not look for it."""
    names = [module_name(path) for path in modules("edge", "shared")]
    assert "shared.protocol" in names and "edge.generation" in names
    program = (
        "import importlib, sys\n"
        "for name in ('torch', 'transformers', 'fastapi', 'uvicorn', 'optimum', 'onnx', 'cloud'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_shared_needs_numpy_and_msgpack_only() -> None:
    """What a client that brings its own runtime has to install."""
    imported: set[str] = set()
    for path in modules("shared"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(item.name.partition(".")[0] for item in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module is not None, f"{path}: imports are absolute"
                imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy", "msgpack", "shared"}


def test_each_package_belongs_to_one_distribution() -> None:
    """Top-level names as plain as these clash easily: two owners would overwrite each other's files."""
    for package, owners in importlib.metadata.packages_distributions().items():
        if package in PACKAGES:
            assert set(owners) == {"edgewise"}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    where = pyproject["tool"]["setuptools"]["packages"]["find"]
    assert where["namespaces"] is False
    # Without namespaces setuptools takes the folders that have an __init__.py and match a pattern.
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    with_init = {module_name(path) for path in modules(*folders) if path.name == "__init__.py"}
    found = {name for name in with_init if any(fnmatchcase(name, pattern) for pattern in where["include"])}
    assert {name.partition(".")[0] for name in found} == set(PACKAGES)
    assert {".".join(path.parent.relative_to(ROOT).parts) for path in modules(*PACKAGES)} == found


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(*PACKAGES, "scripts")}
    assert lengths
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES} == {}


def process_state(tree: ast.AST) -> Iterator[str]:
    """Mentions of the environment and the command line: os.environ, os.getenv, sys.argv, in any spelling."""
    watched = {"os": {"environ", "environb", "getenv", "getenvb", "putenv"}, "sys": {"argv", "orig_argv"}}
    names = {module: module for module in watched}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({item.asname: item.name for item in node.names if item.asname and item.name in watched})
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                if attribute in watched.get(names.get(owner, ""), ()):
                    yield f"line {node.lineno}: {owner}.{attribute}"
            case ast.ImportFrom(module=module) if module in watched:
                for item in node.names:
                    if item.name in watched[module]:
                        yield f"line {node.lineno}: from {module} import {item.name}"


def test_only_main_modules_read_the_environment_and_the_command_line() -> None:
    """Everything else gets what it needs as arguments."""
    found = {
        str(path.relative_to(ROOT)): mentions
        for path in modules(*PACKAGES)
        if path.name != "__main__.py" and (mentions := list(process_state(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os as system\nsystem.getenv('A')",
        "from os import environ",
        "import sys\nprint(sys.argv)",
        "from sys import argv as words",
    ],
)
def test_the_check_sees_every_spelling(source: str) -> None:
    assert list(process_state(ast.parse(source)))
