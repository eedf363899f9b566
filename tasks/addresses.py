"""Addresses of files on the web and of databases.

Prefect stores an address and shows it, the shell remembers it and `ps` lists it: so none may hold a
password. `${NAME}` stands for one until the moment of connecting, and what it stands for is kept nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import sqlalchemy as sa

from models.errors import SpecError
from tasks.paths import home_path

VARIABLE = re.compile(r"\$\{(\w+)\}")
VARIABLES_ALONE = re.compile(r"(\$\{\w+\})*")
VALUE_ALONE = r"(?!(\$\{\w+\})+([&;]|$))[^&;]"
LITERAL_SECRET = re.compile(
    rf"(?i)(pass|pwd|secret|token|signature|credential|key|auth|jwt|bearer|\bsig)[^=&;?/]*={VALUE_ALONE}"
)
"""A setting in a database's address that looks like a secret and is not `${NAME}`."""
LITERAL_SETTING = re.compile(rf"(?i)(^|[&;])(?!(download|dl|raw|alt|format|version|v)=)[^=&;]*={VALUE_ALONE}")
"""A setting in a web address that is not `${NAME}`, but for a few that are known to hold no secret."""

NO_SECRETS = (
    "an address is stored and shown with the run, and this one holds a password or what may be one. Write ${NAME} in "
    "its place, in single quotes, where NAME is an environment variable that holds it; or leave it to the driver "
    "(PGPASSWORD, ~/.pgpass)"
)


def is_web(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def is_database(address: str) -> bool:
    """Whether it is an SQLAlchemy URL, or a variable that holds one."""
    return ("://" in address and not is_web(address)) or VARIABLE.fullmatch(address) is not None


def name_in(address: str) -> str:
    """The file's name in a web address; the database's in an SQLAlchemy URL, empty where it has none."""
    if is_web(address):
        return PurePosixPath(unquote(urlsplit(address).path)).name
    if VARIABLE.fullmatch(address):
        return ""
    return PurePosixPath(sa.make_url(address).database or "").name


def complaint_about(address: str) -> str | None:
    """What is wrong with an address, without quoting it; None where nothing is."""
    if VARIABLE.fullmatch(address):
        return None
    try:
        secret = _web_secret(address) if is_web(address) else sa.make_url(address).password or ""
    except (ValueError, sa.exc.ArgumentError):
        return (
            "this is no address that can be read. A file on the web is written https://HOST/FILE, a database "
            "postgresql+psycopg://HOST/DATABASE or sqlite:///FILE"
        )
    plain = unquote(address)
    if is_web(address):
        setting = bool(
            "#" in plain or LITERAL_SETTING.search(plain.partition("?")[2]) or ";" in plain.partition("?")[0]
        )
    else:
        setting = LITERAL_SECRET.search(plain) is not None
    return NO_SECRETS if setting or not VARIABLES_ALONE.fullmatch(str(secret)) else None


def _web_secret(address: str) -> str:
    """The password before the host; a name alone counts as one, because many servers take tokens there."""
    parts = urlsplit(address)
    if not parts.hostname or (parts.port is not None and not 0 < parts.port < 65536):
        raise ValueError
    return parts.password or parts.username or ""


def expanded(text: str, *, quoted: bool = False) -> str:
    """`text` with every `${NAME}` replaced from the environment, percent-encoded where `quoted`.

    Raises:
      SpecError: a variable is not set.
    """
    missing = [name for name in VARIABLE.findall(text) if name not in os.environ]
    if missing:
        raise SpecError(f"the address names the environment variable {missing[0]}, which is not set. Export it first.")

    def value(found: re.Match[str]) -> str:
        plain = os.environ[found[1]]
        return quote(plain, safe="") if quoted else plain

    return VARIABLE.sub(value, text)


def web_url(address: str) -> str:
    """A web address as it is asked for; not to be shown or kept."""
    scheme, netloc, path, query, _ = urlsplit(address)
    user, at, host = netloc.rpartition("@")
    host, path = expanded(host), expanded(path, quoted=True)
    return urlunsplit((scheme, expanded(user, quoted=True) + at + host, path, expanded(query, quoted=True), ""))


def database_url(address: str) -> sa.URL:
    """An SQLAlchemy URL as it is connected to; not to be shown or kept.

    Variables are put in after it was parsed, so that a password may hold any character. PostgreSQL without a
    driver's name gets the one that comes with Jali.

    Raises:
      SpecError: a variable is not set, or holds no address where it is all there is.
    """
    if VARIABLE.fullmatch(address):
        address = expanded(address)
    try:
        url = sa.make_url(address)
    except (ValueError, sa.exc.ArgumentError):
        url = None
    if url is None:
        raise SpecError("the environment variable that stands for the database's address holds none.")
    return url.set(
        drivername="postgresql+psycopg" if url.drivername in ("postgresql", "postgres") else url.drivername,
        username=expanded(url.username) if url.username else None,
        password=expanded(str(url.password)) if url.password else None,
        host=expanded(url.host) if url.host else None,
        database=_database(url),
        query={
            name: expanded(value) if isinstance(value, str) else tuple(map(expanded, value))
            for name, value in url.query.items()
        },
    )


def _database(url: sa.URL) -> str | None:
    name = expanded(url.database) if url.database else None
    is_file = name and url.get_backend_name() == "sqlite"
    return str(home_path(name)) if name and is_file else name
