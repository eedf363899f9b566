"""What a worker starts for every scheduled run: Jali's settings first, then Prefect's own engine.

Prefect reads its settings when it is imported, and the umask must be ours before anything is written.
"""

from __future__ import annotations

import runpy
import sys

from models.errors import JaliError
from tasks.state import prepare


def main() -> None:
    try:
        prepare()
    except JaliError as error:
        sys.exit(f"jali: {error}")
    sys.argv = ["prefect.engine"]  # which takes the run's id from the environment
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
