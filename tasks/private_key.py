"""Keys that stay in the state folder."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from models.errors import EnvironmentFault

KEY_BYTES = 32


def private_key(path: Path, if_damaged: str) -> bytes:
    """The key in a file, made when missing: whole or not at all, whoever else is making one.

    Args:
      if_damaged: what to do then, as the end of a sentence.

    Raises:
      EnvironmentFault: it is not as long as it was made.
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
        raise EnvironmentFault(f"{path} is damaged: {if_damaged}.")
    return key
