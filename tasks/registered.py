"""What registered models are called, and where a version's files are. Quick to import, for the watcher."""

from __future__ import annotations

from pathlib import Path

CHAMPION, PREVIOUS = "champion", "previous"
"""Aliases of the registered model that is served: what answers now, and what a rollback brings back."""

SERVING = ".serving"


def serving_name(source: str) -> str:
    """The registered model into which versions are promoted: who may promote need not be who may publish."""
    return f"{source}{SERVING}"


def download_release(name: str, number: str, folder: Path) -> Path:
    """Fetch a version's two files to somewhere in `folder`; returns where.

    Raises:
      MlflowException, OSError: they are not to be had.
    """
    import mlflow  # seconds to import

    return Path(mlflow.artifacts.download_artifacts(f"models:/{name}/{number}/artifacts/release", dst_path=str(folder)))
