"""Who may import whom: flows -> tasks -> models, and the one file that is shipped imports nothing of ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"flows", "tasks", "models", "expectations", "serving"}
WORLD = {
    "prefect",
    "mlflow",
    "great_expectations",
    "sqlalchemy",
    "typer",
    "rich",
    "pandas",
    "matplotlib",
    "requests",
    "httpx",
}
MAY_NOT = {
    "models": WORLD | {"tasks", "flows", "expectations", "os", "time", "pathlib", "datetime", "logging"},
    "expectations": {"prefect", "mlflow", "tasks", "flows", "models"},
    "tasks": {"flows", "typer", "rich"},
    "flows": {"mlflow", "great_expectations", "sqlalchemy", "numpy"},
    "serving": WORLD | {"tasks", "flows", "expectations"},
}
EXCEPTIONS = {"models/release.py": {"pathlib"}}  # it saves and loads itself wherever it is shipped to


def imported(file: Path) -> set[str]:
    """Top-level names of every import in the file, wherever it stands, but for those in TYPE_CHECKING."""
    tree = ast.parse(file.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            names.add((node.module or "").split(".")[0])
    return names


FILES = sorted(file for folder in MAY_NOT for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_never_point_back(file: Path) -> None:
    name = file.relative_to(ROOT).as_posix()
    forbidden = MAY_NOT[name.split("/")[0]] - EXCEPTIONS.get(name, set())
    assert imported(file) & forbidden == set()


def test_what_people_reach_knows_releases_and_no_ratings() -> None:
    """Of models/ the web service imports the one file that is shipped."""
    for file in (ROOT / "serving").rglob("*.py"):
        named = re.findall(r"^\s*(?:from|import) (models[.\w]*)", file.read_text(), re.MULTILINE)
        assert set(named) <= {"models.release"}, file


def test_the_layering_test_sees_an_import_in_a_function(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    import prefect.flows\n    from mlflow import x\n")
    assert imported(file) == {"prefect", "mlflow"}


def test_the_shipped_file_needs_numpy_and_safetensors_alone() -> None:
    ours_or_foreign = imported(ROOT / "models" / "release.py") - {
        "__future__", "collections", "dataclasses", "functools", "hashlib", "json", "pathlib", "typing"
    }  # fmt: skip
    assert ours_or_foreign == {"numpy", "safetensors"}


def test_the_folder_mlflow_is_no_package() -> None:
    assert not list((ROOT / "mlflow").rglob("__init__.py"))


def test_every_package_is_listed_for_installation() -> None:
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for folder in OURS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == there


def test_the_lock_names_no_index() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()
