"""Paths as people write them: what they name, and whether a file is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from models.errors import EnvironmentFault, SpecError, shown

LONGEST_NAME = 250  # bytes; with .part it is still a name


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


def require_writable(path: str, what: str, suffix: str) -> None:
    """Find out before the work whether a file can be written after it.

    Raises:
      EnvironmentFault: it cannot.
      SpecError: something that is no report would be overwritten, such as the ratings.
    """
    target = home_path(path).absolute()
    folder = target.parent
    if not os.access(folder, os.W_OK) or len(os.fsencode(target.name)) > LONGEST_NAME:
        raise EnvironmentFault(
            f"the {what} {shown(path)} cannot be written: {shown(folder)} is not a folder one may write to, "
            "or the file's name is too long. Name another file."
        )
    if target.is_dir():
        raise EnvironmentFault(f"the {what} {shown(path)} cannot be written: that is a folder. Name a file in it.")
    if target.exists() and target.suffix != suffix:
        raise SpecError(f"the {what} would overwrite {shown(path)}, which is no {suffix} file. Name another file.")
