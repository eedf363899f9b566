"""Where Jali keeps things, and the settings of its libraries.

Everything lives under `.jali/` in the working folder, readable by its owner alone, unless
MLFLOW_TRACKING_URI, JALI_LEDGER_URL or PREFECT_API_URL point elsewhere. Import this module and call
`prepare` before anything that imports Prefect, MLflow or Great Expectations: they read their
settings when they are imported.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from models.errors import EnvironmentFault


@dataclass(frozen=True)
class State:
    """The folder of a working folder's state; all paths are absolute."""

    folder: Path

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def prefect_home(self) -> Path:
        return self.folder / "prefect"

    @property
    def tracking_database(self) -> Path:
        """MLflow's, where it keeps its runs here."""
        return self.folder / "mlflow.db"

    @property
    def local_tracking_uri(self) -> str:
        return f"sqlite:///{self.tracking_database}"

    @property
    def tracking_uri(self) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or self.local_tracking_uri

    @property
    def tracks_locally(self) -> bool:
        return self.tracking_uri == self.local_tracking_uri

    @property
    def ledger_url(self) -> str:
        return os.environ.get("JALI_LEDGER_URL") or f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def ledger_key_file(self) -> Path:
        """Where the key is that seals the ledger's rows, unless JALI_LEDGER_KEY holds it."""
        return self.folder / "ledger.key"

    @property
    def own_folder(self) -> Path:
        """Of this account, whatever the working folder: there it is remembered which sources have a budget."""
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "jali"


def without_credentials(url: str) -> str:
    """A server's address as it may be shown and stored: Prefect keeps what our messages say."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def current_state() -> State:
    return State(Path.cwd() / ".jali")


def prepare() -> State:
    """Make the state folder, private to its owner, and set what the libraries should not do.

    Raises:
      EnvironmentFault: the folder cannot be made or written to.
    """
    os.umask(0o077)  # files 0600 and folders 0700 from here on, whoever makes them
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold ratings
    state = current_state()
    try:
        for folder in (state.folder, state.artifacts, state.prefect_home):
            folder.mkdir(exist_ok=True)
        state.folder.chmod(0o700)
        probe = state.folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EnvironmentFault(
            f"Jali keeps its state in {state.folder} and cannot write there ({error.strerror}). "
            "Run it in a folder of your own."
        ) from None
    debugging = bool(os.environ.get("JALI_DEBUG"))
    defaults = {
        "PREFECT_HOME": str(state.prefect_home),
        "PREFECT_LOGGING_LEVEL": "INFO" if debugging else "CRITICAL",
        "PREFECT_CLIENT_MAX_RETRIES": "2",  # a server that is lost is found lost in seconds, not in minutes
        "PREFECT_LOGGING_INTERNAL_LEVEL": "INFO" if debugging else "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",  # a log line could quote what an exception quotes
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_COLORS": "false",
        "DO_NOT_TRACK": "true",
        "GX_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_LOGGING_LEVEL": "INFO" if debugging else "CRITICAL",  # its errors are tracebacks, with SQL and values
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        "OPENBLAS_NUM_THREADS": "1",  # folds run in parallel already
        "MPLBACKEND": "agg",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return state
