"""Starts the watcher of the registry, before anything that takes its time to import."""

from __future__ import annotations

import os
import subprocess
import sys

IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
"""It looks again in a second anyway."""


def start_watcher(source: str | None) -> subprocess.Popen[bytes]:
    """A process that says words about `source`, or about the only one there is."""
    # -P: a folder called mlflow in the working folder is not what is to be imported
    return subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-m", "tasks.champion", *([source] if source else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("JALI_DEBUG") else subprocess.DEVNULL,
        env={**os.environ, **IMPATIENT},
        start_new_session=True,  # a Ctrl-C is for the server; this ends when the server has
    )
