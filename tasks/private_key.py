"""A key of its own for whatever the state folder must name without telling what it is."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from models.errors import EnvironmentFault

KEY_BYTES = 32


def private_key(path: Path, purpose: str) -> bytes:
    """The key at `path`, made when missing: whole or not at all, whoever else is making one.

    Args:
      purpose: completes "the key ...", for whoever finds it damaged.

    Raises:
      EnvironmentFault: what is there is no key.
    """
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-") as new:
            new.write(secrets.token_bytes(KEY_BYTES))
            new.flush()
            os.fsync(new.fileno())
            with suppress(FileExistsError):
                os.link(new.name, path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise EnvironmentFault(f"{path} is damaged: it is no longer the key {purpose}.")
    return key
