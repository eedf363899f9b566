"""Releases as the registry keeps them: the newest version's two files, read back."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from models.errors import EnvironmentFault
from models.release import Release, ReleaseError
from tasks.guard import guarded
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
    import mlflow  # seconds to import; open_tracking just did

    with TemporaryDirectory(prefix="jali-") as folder:
        files = mlflow.artifacts.download_artifacts(f"models:/{name}/{number}/artifacts/release", dst_path=folder)
        try:
            return number, Release.load(Path(files))
        except ReleaseError as error:
            reason = str(error)
    raise EnvironmentFault(f"version {number} of {name}: {reason}")
