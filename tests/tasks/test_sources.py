from __future__ import annotations

import gzip
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.job import make_job
from models.errors import EnvironmentFault, SpecError
from tasks import downloads
from tasks.addresses import database_url, web_url
from tasks.rating_files import RatingsSource, read_ratings
from tasks.state import State
from tests.local_server import Site, serving

SECRET = "secret-4711"
CSV = b"user,item,rating\n7,10,4\n7,2,3\n12,10,1\n"


@pytest.fixture
def site(state: State) -> Iterator[Site]:
    with serving({"/r.csv": CSV, "/r.csv.gz": gzip.compress(CSV), "/ml/u.data": b"7\t10\t4\t1\n"}) as site:
        yield site


def n_ratings(**settings: Any) -> int:
    return len(read_ratings(RatingsSource(**settings))[1].ratings)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql+psycopg://me:{SECRET}@host/db",
        f"postgresql+psycopg://me:{SECRET}/x@host/db",
        f"postgresql+psycopg://me:${{NAME}}{SECRET}@host/db",
        f"postgresql+psycopg://host/db?password={SECRET}",
        f"postgresql+psycopg://host/db?pass={SECRET}",
        f"postgresql+psycopg://host/db?private_key={SECRET}",
        f"mssql+pyodbc://host/db;PWD={SECRET}",
        f"https://host/r.csv?key={SECRET}",
        f"https://host/r.csv?raw=1&api-key={SECRET}",
        f"https://host/r.csv?x={SECRET}",
        f"https://host/r.csv#password={SECRET}",
        f"https://host/r.csv;password={SECRET}",
        f"postgresql+psycopg://host/db?user=me&sslpassword={SECRET}",
        f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}",
        f"mysql://me:{SECRET}@host",
        f"https://me:{SECRET}@host/r.csv",
        f"https://{SECRET}@host/r.csv",
        f"HTTPS://host/r.csv?token={SECRET}",
        f"https://host/r.csv?X-Amz-Signature={SECRET}",
        f"https://host/r.csv?a=b&sig={SECRET}",
    ],
)
@pytest.mark.parametrize("where", ["ratings", "path"])
def test_an_address_with_a_password_is_refused_with_the_way_out(address: str, where: str) -> None:
    more = {} if address.lower().startswith("https") else {"table": "t"}
    told: Any = address if where == "ratings" else {"path": address, **more}
    with pytest.raises(SpecError, match=r"\$\{NAME\}") as refusal:
        make_job({"ratings": told, "scale": "1:5:1"})
    assert SECRET not in str(refusal.value)
    assert refusal.value.exit_code == 2
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("address", ["https://", f"https://me:{SECRET}", f"postgresql://host:{SECRET}/db", "a b://x"])
def test_what_cannot_be_read_as_an_address_is_not_quoted(address: str) -> None:
    with pytest.raises(SpecError, match="no address") as refusal:
        make_job({"ratings": {"path": address}})
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"path": "sqlite:///x.db"}, "found neither"),
        ({"path": "sqlite:///x.db", "table": "a", "query": "b"}, "found both"),
        ({"path": "x.csv", "table": "a"}, "belongs to a database"),
        ({"path": "https://host/x.csv", "query": "select"}, "belongs to a database"),
        ({"path": "sqlite:///x.db", "table": "a", "format": "csv"}, "a format is of a file"),
        ({"path": "sqlite:///x.db", "table": "a", "checksum": "md5:" + "0" * 32}, "a checksum is of a file"),
        ({"path": "x.csv", "checksum": "sha256:12"}, "sha256:HEX"),
        ({"path": "x.csv", "checksum": "crc:" + "0" * 32}, "sha256:HEX"),
        ({"path": "x.csv", "checksum": "md5:" + "g" * 32}, "sha256:HEX"),
        ({"path": "sqlite:///nope.db", "table": "a"}, "does not exist"),
        ({"path": "postgresql://me:${NO_SUCH_NAME}@h/db", "table": "a"}, "NO_SUCH_NAME, which is not set"),
        ({"path": "https://h/${NO_SUCH_NAME}.csv"}, "NO_SUCH_NAME, which is not set"),
    ],
)
def test_settings_that_contradict_themselves_are_one_sentence(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as refusal:
        make_job({"ratings": settings, "source": "films", "scale": "1:5:1"})
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"path": "sqlite:///here/x.db", "table": "shop.films"}, "films"),
        ({"path": "sqlite:///here/x.db", "query": "select"}, "x.db"),
        ({"path": "https://host/a/films%20old.csv.gz?version=2"}, "films old.csv.gz"),
        ({"path": "folder/films.csv"}, "films.csv"),
    ],
)
def test_the_data_are_called_like_the_table_or_the_file(settings: dict[str, str], name: str) -> None:
    assert RatingsSource(**settings).name == name


def test_variables_are_put_in_when_connecting_whatever_characters_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "a@b/c:d?e%f")
    address = "postgresql+psycopg://me:${PW}@host:5/db?sslpassword=${PW}"
    url = database_url(address)
    assert (url.password, url.host, url.port) == ("a@b/c:d?e%f", "host", 5)
    assert url.query == {"sslpassword": "a@b/c:d?e%f"}
    assert (
        web_url("https://me:${PW}@host/x?t=${PW}") == "https://me:a%40b%2Fc%3Ad%3Fe%25f@host/x?t=a%40b%2Fc%3Ad%3Fe%25f"
    )
    monkeypatch.setenv("WHOLE", "sqlite:///x.db")
    assert database_url("${WHOLE}").database == "x.db"
    monkeypatch.setenv("WHOLE", f"no address {SECRET}")
    with pytest.raises(SpecError) as refusal:
        database_url("${WHOLE}")
    assert SECRET not in str(refusal.value) + str(refusal.value.__context__)


def test_what_is_shown_of_a_source_holds_no_password_and_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    digest = "0" * 64
    shown = RatingsSource(path="https://${PW}@host/r.csv", checksum=f"sha256:{digest}")
    assert SECRET not in shown.model_dump_json() + repr(shown)
    assert digest not in shown.model_dump_json() + repr(shown)


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "r.csv?version=3"])
def test_a_file_on_the_web_is_read_and_not_kept(site: Site, state: State, name: str) -> None:
    before = sorted(state.folder.rglob("*"))
    assert n_ratings(path=f"{site.address}/{name}") == 3
    assert sorted(state.folder.rglob("*")) == before


def test_the_format_of_a_file_on_the_web_is_told_by_its_name(site: Site) -> None:
    format_, table = read_ratings(RatingsSource(path=f"{site.address}/ml/u.data"))
    assert format_.catalogue is not None
    assert table.user_labels == ("7",)


def test_a_password_reaches_the_server_and_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("PW", SECRET)
    address = site.address.replace("//", "//me:${PW}@")
    with pytest.raises(SpecError) as refusal:
        n_ratings(path=f"{address}/no.csv?token=${{PW}}")
    assert SECRET in site.asked[0][0]
    assert site.asked[0][1] is not None
    said = (refusal.value, refusal.value.__context__, refusal.value.__cause__, caplog.text)
    assert SECRET not in " ".join(map(str, said))


KINDS = {"sha256": hashlib.sha256, "sha1": hashlib.sha1, "md5": hashlib.md5}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("local", [True, False])
def test_a_checksum_is_checked_and_what_was_found_is_not_told(site: Site, state: State, kind: str, local: bool) -> None:
    Path("r.csv").write_bytes(CSV)
    path, digest = "r.csv" if local else f"{site.address}/r.csv", KINDS[kind](CSV).hexdigest()
    assert n_ratings(path=path, checksum=f"{kind}:{digest.upper()}") == 3
    before = sorted(state.folder.rglob("*"))
    with pytest.raises(SpecError, match=f"does not have the {kind} checksum") as refusal:
        n_ratings(path=path, checksum=f"{kind}:{digest[::-1]}")
    assert digest not in str(refusal.value)
    assert sorted(state.folder.rglob("*")) == before


def test_what_goes_wrong_on_the_web_is_one_sentence_and_leaves_nothing(
    site: Site, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(state.folder.rglob("*"))
    with pytest.raises(SpecError, match="server answers 404"):
        n_ratings(path=f"{site.address}/no.csv")
    site.status = 403
    with pytest.raises(EnvironmentFault, match="server answers 403"):
        n_ratings(path=f"{site.address}/r.csv")
    site.status, site.breaks_off = 200, True
    with pytest.raises(EnvironmentFault, match="breaks off"):
        n_ratings(path=f"{site.address}/r.csv")
    site.breaks_off = False
    monkeypatch.setattr(downloads, "MOST_SECONDS", -1)
    with pytest.raises(EnvironmentFault, match="was given up"):
        n_ratings(path=f"{site.address}/r.csv")
    with pytest.raises(EnvironmentFault, match="does not answer") as fault:
        n_ratings(path="http://127.0.0.1:1/r.csv")
    assert fault.value.__context__ is None
    monkeypatch.setattr(downloads, "SILENCE_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(EnvironmentFault, match="does not answer"),
    ):
        n_ratings(path=f"http://127.0.0.1:{silent.getsockname()[1]}/r.csv")
    assert sorted(state.folder.rglob("*")) == before
