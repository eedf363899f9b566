"""What registered models are called, and where a version's files are. Quick to import, for the watcher."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

CHAMPION, PREVIOUS = "champion", "previous"
"""Aliases of the registered model that is served: what answers now, and what a rollback brings back."""

SERVING = ".serving"
CHECKSUM, CONDITION_TAG = "promotion.sha256", "promotion.condition"
"""Tags of a version that was promoted: what its files were then, and under which condition."""
RELEASE_FOLDER = "artifacts/release"
"""Where a version has its release."""
LEFT_BY_LOADING = "__pycache__"
NOTED_BY_MLFLOW = "registered_model_meta"
"""A file that MLflow adds as it downloads a version."""


def serving_name(source: str) -> str:
    """The registered model into which versions are promoted: who may promote need not be who may publish."""
    return f"{source}{SERVING}"


def download_version(name: str, number: str, folder: Path, part: str = "") -> Path:
    """Fetch a version's files, or those of a folder of it, to somewhere in `folder`; returns where.

    Raises:
      MlflowException, OSError: they are not to be had.
    """
    import mlflow  # seconds to import

    address = f"models:/{name}/{number}/{part}" if part else f"models:/{name}/{number}"
    there = Path(mlflow.artifacts.download_artifacts(address, dst_path=str(folder)))
    for left in list(there.rglob(LEFT_BY_LOADING)):  # it would be run in place of what is checked
        shutil.rmtree(left)
    return there


def files_in(folder: Path) -> dict[str, Path]:
    """By their place in the version; a link counts as the file that it is, and what Python left by loading as none."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if not path.is_dir()}
    return {
        str(name): path
        for name, path in sorted(found.items())
        if str(name) != NOTED_BY_MLFLOW and LEFT_BY_LOADING not in name.parts
    }


def checksum(folder: Path) -> str:
    """Of all files of a version and their names; all of them are public."""
    total = hashlib.sha256()
    for name, path in files_in(folder).items():
        total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"
