"""Paths as people write them: what they name, and whether a file is there."""

from __future__ import annotations

import stat
from pathlib import Path

from models.errors import EnvironmentFault, SpecError, shown


def home_path(path: str) -> Path:
    """The path with `~` as the home it names; as it stands where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_folder(path: Path) -> bool:
    """Whether there is a folder; a name that none can have is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def require_file(path: Path, what: str) -> None:
    """Raise SpecError unless there is a file at `path`, EnvironmentFault where one may not even look."""
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise EnvironmentFault(f"the {what} file {shown(path)} cannot be read ({error.strerror}).") from None
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        raise SpecError(
            f"the {what} file {shown(path)} does not exist. Check the path; it is taken from the working folder."
        ) from None
    if stat.S_ISDIR(mode):
        raise SpecError(f"{shown(path)} is a folder; name the {what} file inside it.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise SpecError(f"{shown(path)} is a device, which may never end; name a file of {what}.")
