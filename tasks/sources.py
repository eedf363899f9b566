"""Where a table is and how to read it: a file, a file on the web, or a table or query of a database."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from models.errors import EnvironmentFault, SpecError, shown
from tasks.addresses import complaint_about, database_url, is_database, is_web, name_in, web_url
from tasks.downloads import download
from tasks.paths import home_path, require_file
from tasks.state import current_state

CHECKSUM_DIGITS = {"sha256": 64, "sha1": 40, "md5": 32}


class TableSource(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """An address and settings only: safe to show. Passwords in it are refused."""

    path: str = Field(min_length=1)
    """A path, an http(s) address, or an SQLAlchemy URL; `${NAME}` in the last two is read from the environment."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    checksum: SecretStr | None = None
    """`sha256:HEX`, `sha1:HEX` or `md5:HEX` of the file. Not shown: with it a guess at the content can be checked."""
    table: str | None = Field(default=None, min_length=1)
    """`NAME` or `SCHEMA.NAME`, of a database."""
    query: str | None = Field(default=None, min_length=1)
    """In the database's SQL; stored and shown with the run."""

    @model_validator(mode="before")
    @classmethod
    def _says_where_it_is(cls, told: Any) -> Any:
        if isinstance(told, dict) and told.get("path") is None:
            raise ValueError(
                "it is said how to read a table and not where it is; say --ratings or --preferences with a path, a web "
                "address or a database, or, in a configuration, `path`"
            )
        return told

    @field_validator("delimiter")
    @classmethod
    def _one_that_can_separate(cls, value: str | None) -> str | None:
        if value is not None and (not value.isascii() or value in '"\r\n'):
            raise ValueError("a delimiter is one ASCII character, and no quotation mark and no line end")
        return value

    @model_validator(mode="after")
    def _an_address_without_secrets(self) -> TableSource:
        complaint = complaint_about(self.path) if self.is_database or is_web(self.path) else None
        if complaint:
            raise ValueError(complaint)
        return self

    @model_validator(mode="after")
    def _settings_that_fit(self) -> TableSource:
        asked = (self.table is not None) + (self.query is not None)
        if self.is_database and asked != 1:
            raise ValueError(f"of a database give a table or a query, and found {'both' if asked else 'neither'}")
        if asked and not self.is_database:
            raise ValueError(
                "a table or a query belongs to a database such as postgresql+psycopg://HOST/DATABASE; a file was given"
            )
        if self.checksum is not None:
            if self.is_database:
                raise ValueError("a checksum is of a file, and a database was given")
            kind, _, digits = self.checksum.get_secret_value().partition(":")
            if len(digits) != CHECKSUM_DIGITS.get(kind) or not re.fullmatch("[0-9a-fA-F]+", digits):
                raise ValueError("a checksum is written sha256:HEX (or sha1:HEX, md5:HEX), with all its digits")
        return self

    @property
    def is_database(self) -> bool:
        return is_database(self.path)

    @property
    def name(self) -> str:
        """What the data is called if nobody says: the file's name, the table's, or a query's database's."""
        if self.table:
            return self.table.rpartition(".")[2]
        return name_in(self.path) if self.is_database or is_web(self.path) else self.local_path.absolute().name

    @property
    def plain_name(self) -> str:
        """The file's name without .gz."""
        return self.name.removesuffix(".gz")

    @property
    def kind_by_name(self) -> str | None:
        """Parquet or tsv, where the file's name ends like this."""
        name = self.plain_name.lower()
        return next((ending for ending in ("parquet", "tsv") if name.endswith(f".{ending}")), None)

    @property
    def local_path(self) -> Path:
        return home_path(self.path)

    def require(self, what: str) -> None:
        """Raise SpecError for what can be known to be missing without reading: a file, an environment variable."""
        if self.is_database:
            url = database_url(self.path)
            if url.get_backend_name() == "sqlite" and not home_path(url.database or "").is_file():
                raise SpecError(f"the database {self.path} does not exist. Check the path after sqlite:///.")
        elif is_web(self.path):
            web_url(self.path)
        else:
            require_file(self.local_path, what)


@dataclass(frozen=True)
class LocalFile:
    """A file to be read, and what to call it: one from the web lies here under another name for a while."""

    path: Path
    shown: str
    what: str
    """`ratings`, `items` or `preferences`."""

    def __str__(self) -> str:
        return f"the {self.what} file {self.shown}"

    @classmethod
    def at(cls, path: Path, what: str) -> LocalFile:
        return cls(path, shown(path), what)


@contextmanager
def local_file(source: TableSource, what: str) -> Iterator[LocalFile]:
    """The source's file, or folder, on this machine, checked against its checksum; what was downloaded is removed.

    Raises:
      SpecError: there is no such file, or the checksum is another.
      EnvironmentFault: the web server does not answer, or the file cannot be read.
    """
    if not is_web(source.path):
        file = LocalFile.at(source.local_path, what)
        _require_checksum(source, file)
        yield file
        return
    folder = current_state().folder
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as private:
        name = source.name if re.fullmatch(r"\w[\w.-]{0,99}", source.name) else "file"
        file = LocalFile(Path(private) / name, source.path, what)
        download(web_url(source.path), file.path, shown=str(file))
        _require_checksum(source, file)
        yield file


def _require_checksum(source: TableSource, file: LocalFile) -> None:
    if source.checksum is None:
        return
    require_file(file.path, file.what)
    kind, _, digits = source.checksum.get_secret_value().partition(":")
    try:
        with file.path.open("rb") as content:
            is_right = hashlib.file_digest(content, kind).hexdigest() == digits.lower()
    except OSError as error:
        raise EnvironmentFault(f"{file} cannot be read ({error.strerror}).") from None
    if not is_right:
        raise SpecError(f"{file} does not have the {kind} checksum that was given. Fetch it again, or mend --checksum.")
