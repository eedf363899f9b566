"""The command in this process, where no server is needed."""

from __future__ import annotations

import subprocess
import sys


def test_arguments_are_understood_before_anything_heavy_is_imported() -> None:
    """A bad one is refused after the second that this takes."""
    program = "import sys, flows.options; print([m for m in ('prefect', 'mlflow', 'pandas') if m in sys.modules])"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout == "[]\n"
