"""Releases as the registry keeps them: the newest version's two files, read back."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from models.errors import EnvironmentFault
from models.release import Release, ReleaseError
from tasks.guard import guarded
from tasks.registered import RELEASE_FOLDER, download_version
from tasks.state import current_state
from tasks.tracking import open_tracking


@guarded("Reading the registry")
def newest_release(source: str, recommender: str) -> tuple[str, Release] | None:
    """The newest version of SOURCE.RECOMMENDER and its number; None where there is none.

    Raises:
      EnvironmentFault: MLflow does not answer, or the version's files are damaged.
    """
    state = current_state()
    if state.tracks_locally and not state.tracking_database.exists():
        return None  # nothing was ever published here, and MLflow would take seconds to make its tables
    client = open_tracking(state)
    name = f"{source}.{recommender}"
    versions = client.search_model_versions(f"name = '{name}'")
    if not versions:
        return None
    number = str(max(int(found.version) for found in versions))
    return number, release_of(name, number)


@guarded("Reading the registry")
def release_of(name: str, number: str) -> Release:
    """A version's release, once `open_tracking` has found the registry.

    Raises:
      EnvironmentFault: its files are damaged or gone.
    """
    with TemporaryDirectory(prefix="jali-") as folder:
        return downloaded(name, number, Path(folder), RELEASE_FOLDER)


def downloaded(name: str, number: str, folder: Path, part: str = "") -> Release:
    """A version's files, in `folder`: all of them or those of a part of it; and the release that they hold.

    Raises:
      EnvironmentFault: they are damaged or gone.
    """
    from mlflow.exceptions import MlflowException  # seconds to import

    try:
        there = download_version(name, number, folder, part)
        return Release.load(there if part else folder / RELEASE_FOLDER)
    except (ReleaseError, MlflowException, OSError) as error:
        reason = str(error) if isinstance(error, ReleaseError) else "MLflow does not find its files. Restore them."
    raise EnvironmentFault(f"version {number} of {name}: {reason}")
