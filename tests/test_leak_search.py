"""The search finds what is there, in every encoding and in encodings of encodings, and nothing where nothing is."""

from __future__ import annotations

import base64
import bz2
import codecs
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import safetensors.numpy

from tests.leak_search import DECODERS, Search, Secret

RATINGS = np.random.default_rng(5).integers(1, 6, 40)
NOISE = np.random.default_rng(6).bytes(99)
SEED = 0xF0E1D2C3B4A59687
FILE = b"user,item,rating\n1,2,3\n"
SECRETS = (
    Secret.text("user", "unmistakable"),
    Secret.big_number("numeric user", 7301948265501937),
    Secret.big_number("seed", SEED),
    Secret.count("count", 7919),
    Secret.ratings("ratings", RATINGS.tolist()),
    Secret.digests("digest", FILE),
)

Encoder = Callable[[bytes], bytes]


def as_text(content: bytes) -> str:
    """Where only text fits, who has bytes encodes them first."""
    return content.decode() if content.isascii() and b"\0" not in content else base64.b64encode(content).decode()


def sqlite_file(value: object) -> bytes:
    with TemporaryDirectory() as folder:
        with closing(sqlite3.connect(Path(folder) / "it.db")) as database:
            database.execute("CREATE TABLE kept (id INTEGER, value)")
            database.execute("INSERT INTO kept VALUES (1, ?)", (value,))
            database.commit()
        return (Path(folder) / "it.db").read_bytes()


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kept", content)
    return out.getvalue()


def tarred(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        about = tarfile.TarInfo("kept")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    return out.getvalue()


def parquet_of(**columns: object) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def arrow_of(**columns: object) -> bytes:
    table, out = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    return out.getvalue().to_pybytes()


ENCODERS: dict[str, Encoder] = {
    "as it is": lambda content: content,
    "in binary": lambda content: b"\xff\x00\n" + content + b"\n\x00\xfe",
    "base64": base64.b64encode,
    "base64 in lines": base64.encodebytes,
    "base64 in JSON": lambda content: json.dumps({"a": base64.encodebytes(content).decode()}).encode(),
    "base64, urlsafe, without padding": lambda content: b"key_" + base64.urlsafe_b64encode(content).rstrip(b"="),
    "hex": lambda content: content.hex().encode(),
    "hex, upper, after a digit": lambda content: b"0" + content.hex().upper().encode(),
    "hex with colons": lambda content: content.hex(":").encode(),
    "JSON escapes": lambda content: "".join(f"\\u{ord(letter):04x}" for letter in as_text(content)).encode(),
    "JSON in JSON": lambda content: json.dumps(json.dumps({"kept": as_text(content)})).encode(),
    "Python escapes": lambda content: repr(content).encode(),
    "in an address": lambda content: urllib.parse.quote(content).encode(),
    "gzip": gzip.compress,
    "zlib inside something": lambda content: b"head" + zlib.compress(content) + b"tail",
    "gzip cut short": lambda content: gzip.compress(content + b"\n" + NOISE)[:-12],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
    "zip": zipped,
    "tar": tarred,
    "pickle": pickle.dumps,
    "pickle of an object": lambda content: b"junk" + pickle.dumps({"kept": [1, {"deep": content}]}, 2),
    "pickle, protocol 0": lambda content: pickle.dumps(content.hex(), 0),
    "sqlite": sqlite_file,
    "Parquet": lambda content: parquet_of(kept=[content]),
    "Arrow": lambda content: arrow_of(kept=[content]),
    "safetensors": lambda content: safetensors.numpy.save({"kept": np.frombuffer(content, np.uint8)}),
    "utf-16": lambda content: as_text(content).encode("utf-16-le"),
}

CARRIERS: dict[str, tuple[str, bytes]] = {
    "a user id": ("user", b"user unmistakable-17 was here"),
    "a user id in utf-16": ("user", "unmistakable-17".encode("utf-16-le")),
    "a numeric id": ("numeric user", b'{"user": 7301948265501937}'),
    "a raw id": ("numeric user", (7301948265501937).to_bytes(8, "little")),
    "a seed": ("seed", f"seed={SEED}".encode()),
    "a seed in hex": ("seed", f"seed={SEED:#x}".encode()),
    "a raw seed": ("seed", SEED.to_bytes(8, "big")),
    "a count": ("count", b'{"n": 7919}'),
    "a count with a comma": ("count", b"of 7,919 ratings"),
    "a float": ("count", b"n=7919.0\n"),
    "a scientific float": ("count", b"n 7.91900e+03 n"),
    "rows": ("ratings", "".join(f"unknown-{at},{at},{r}\n" for at, r in enumerate(RATINGS)).encode()),
    "a list": ("ratings", str(RATINGS.tolist()).encode()),
    "digits": ("ratings", "".join(map(str, RATINGS)).encode()),
    "floats": ("ratings", RATINGS.astype(np.float32).tobytes()),
    "centred doubles": ("ratings", (RATINGS - 3.0).tobytes()),
    "levels": ("ratings", (RATINGS - 1).astype(np.int32).tobytes()),
    "a digest": ("digest", Secret.digests("", FILE).needles[0]),
    "a digest in hex": ("digest", Secret.digests("", FILE).needles[1]),
}


def found_in(content: bytes) -> set[str]:
    search = Search(SECRETS)
    search.look("it", content)
    return search.found


@pytest.mark.parametrize("encoding", ENCODERS)
def test_every_secret_is_found_in_every_encoding(encoding: str) -> None:
    found = {name: found_in(ENCODERS[encoding](content)) for name, (_, content) in CARRIERS.items()}
    assert found == {name: {secret} for name, (secret, _) in CARRIERS.items()}


@pytest.mark.parametrize("outer", ENCODERS)
def test_encodings_of_encodings_are_undone(outer: str) -> None:
    planted = b"user unmistakable-17 with 7919 ratings\n" + str(RATINGS.tolist()).encode()
    found = {inner: found_in(ENCODERS[outer](ENCODERS[inner](planted))) for inner in ENCODERS}
    assert found == {inner: {"user", "count", "ratings"} for inner in ENCODERS}


def test_a_pickle_in_base64_in_a_database_in_a_zip_is_undone() -> None:
    nested = zipped(sqlite_file(base64.b64encode(pickle.dumps({"ratings": RATINGS.astype(np.float64)})).decode()))
    assert found_in(nested) == {"ratings"}


COUNTS = np.array([3, 7919, 12])


@pytest.mark.parametrize("kind", ["<i4", "<i8", ">i8", "<u2", "<f4", "<f8"])
@pytest.mark.parametrize(
    "encode",
    [
        pickle.dumps,
        lambda array: pickle.dumps(pd.DataFrame({"n": array.astype(array.dtype.newbyteorder("="))})),
        lambda array: safetensors.numpy.save({"n": array.astype(array.dtype.newbyteorder("="))}),
        lambda array: parquet_of(n=array.astype(array.dtype.newbyteorder("="))),
        lambda array: arrow_of(n=array.astype(array.dtype.newbyteorder("="))),
        lambda array: gzip.compress(base64.b64encode(pickle.dumps([array]))),
    ],
)
def test_a_count_among_typed_numbers_is_found(kind: str, encode: Callable[[np.ndarray], bytes]) -> None:
    assert found_in(encode(COUNTS.astype(kind))) == {"count"}
    assert found_in(encode((COUNTS + 1).astype(kind))) == set()


def test_counts_are_found_as_numbers_of_a_database_and_of_a_pickle() -> None:
    for value in (7919, 7919.0, "7919", b"7919"):
        assert found_in(sqlite_file(value)) == {"count"}
        assert found_in(pickle.dumps({"n": value})) == {"count"}
    assert found_in(sqlite_file(7920)) == set()


def test_how_many_rows_a_table_has_is_found() -> None:
    assert found_in(parquet_of(n=np.zeros(7919, np.int8))) == {"count"}


def test_ratings_are_found_as_a_column_of_rows() -> None:
    rows = np.column_stack([np.arange(40) + 100, RATINGS, np.full(40, 7)]).astype(np.float32)
    saved = io.BytesIO()
    np.save(saved, rows)
    assert found_in(saved.getvalue()) == found_in(pickle.dumps(rows)) == {"ratings"}
    other = rows.copy()
    other[20, 1] = 9
    assert found_in(pickle.dumps(other)) == set()


def test_the_log_of_a_database_and_its_deleted_rows_are_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "it.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE kept (value)")
        database.execute("INSERT INTO kept VALUES (?)", ("unmistakable" + "x" * 3000,))
        database.execute("INSERT INTO kept VALUES (7919)")
        database.commit()
        database.execute("DELETE FROM kept WHERE value > 'a'")
        database.commit()
        search = Search(SECRETS)
        search.folder(tmp_path)
    assert search.found == {"user", "count"}
    assert {finding.where for finding in search.findings if finding.secret == "count"} == {
        "it.db with its log > sqlite"
    }


def test_names_and_links_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "unmistakable-3").mkdir()
    (tmp_path / "link").symlink_to(f"/nowhere/{SEED:x}")
    (tmp_path / "input.csv").write_text("7919")
    search = Search(SECRETS)
    search.folder(tmp_path, but=["input.csv"])
    assert search.found == {"user", "seed"}


def test_a_damaged_database_is_reported_as_unread() -> None:
    search = Search(SECRETS)
    search.look("it.db", sqlite_file("x" * 9000)[:5000])
    assert search.unread != []


def test_numbers_that_only_look_like_the_count_are_no_finding() -> None:
    for text in ("17919", "79190", "0.7919", "7919.5", "a7919b", "2b7919ff", "x7919", "1.7919", "17,919", "7.9191e3"):
        assert found_in(f'{{"n": {text}}}'.encode()) == set(), text
    assert found_in(b"d2cb5e0b-7919-4c55-9dd5-0a9b1e0c7b11") == set()
    assert found_in(b"d2cb5e0b-7919-4c55-9dd5-0a9b1e0c7b11 has 7919.") == {"count"}


@pytest.mark.parametrize("encoding", ENCODERS)
def test_nothing_is_found_where_nothing_is(encoding: str) -> None:
    rng = np.random.default_rng(3)
    harmless = {
        "noise": rng.normal(size=2000).tolist(),
        "ratings": rng.integers(1, 6, 4000).tolist(),
        "text": "mistaken users gave 7918 and 7920 ratings",
    }
    for content in (json.dumps(harmless).encode(), rng.bytes(100_000), pickle.dumps(harmless), codecs.BOM_UTF8 * 9):
        assert found_in(ENCODERS[encoding](content)) == set()


def test_every_decoder_has_undone_something_here() -> None:
    search, saved = Search(SECRETS), io.BytesIO()
    np.save(saved, COUNTS)
    for encode in ENCODERS.values():
        search.look("it", encode(b"kept: 100% of \xff"))
    search.look("it", saved.getvalue())
    assert set(search.views) == set(DECODERS)
    assert "6 secrets (user, numeric user, seed, count, ratings, digest)" in search.summary()
