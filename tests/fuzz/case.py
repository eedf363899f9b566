"""One bad (or good) input: the files of a working folder, the command line typed in it, and who may not be quoted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

SECRET_USER = "unmistakable"
SECRET_RATING = "4.73219"
SECRET_PASSWORD = "swordfish-4711"
SECRETS = (SECRET_USER, SECRET_RATING, SECRET_PASSWORD)


@dataclass(frozen=True)
class Case:
    kind: str
    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def written_to(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder
