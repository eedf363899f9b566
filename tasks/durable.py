"""Files that survive the power going."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Put `content` in `file`, whole or not at all, readable by its owner alone; on the disk when this returns.

    Raises:
      OSError: it cannot be written; what was there before is there still.
    """
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(content)
        to_disk(part)
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    to_disk(file.parent)


def to_disk(*paths: Path) -> None:
    """Return once the files, and what the folders list, would survive the power going."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
