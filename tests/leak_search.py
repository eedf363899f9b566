"""Search whatever a program left behind for secrets, through every encoding they may be in.

Everything is bytes. A *view* is what bytes become when one encoding is undone; views are searched like files,
and have views of their own, down to `MAX_DEPTH`. Numbers that are typed (SQL columns, pickled numbers, arrays of
Parquet, safetensors, numpy) become text, one to a line, so that one rule finds a number wherever it is.

What is *not* looked for, because ordinary files are full of it: a small count as raw integer bytes outside an
array of declared type (it is any offset or length), or as text that touches letters, digits or binary bytes (it is
part of a hash); what a picture shows; what is encrypted.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import hashlib
import io
import json
import lzma
import pickletools
import re
import shutil
import sqlite3
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy

MAX_DEPTH = 6
STRIDES = range(1, 9)
"""A sequence is found as one column of rows with up to eight numbers."""
SMALL = 512
"""Decoded tokens shorter than this are searched together: a database holds thousands of words."""


@dataclass(frozen=True)
class Secret:
    """What must not be found.

    Args:
      needles: found wherever these bytes are.
      number: found where it is a number of its own: 7919, 7,919, 7919.0, 7.919e3.
      sequence: whole numbers, found where they follow each other: as text, also as one column of several, as an
        array of any type, and shifted to start at zero or to be centred.
    """

    name: str
    needles: tuple[bytes, ...] = ()
    number: int | None = None
    sequence: tuple[int, ...] = ()

    @classmethod
    def text(cls, name: str, text: str) -> Secret:
        return cls(name, (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be")))

    @classmethod
    def big_number(cls, name: str, value: int) -> Secret:
        """A number so large that its bytes are unmistakable: in decimal, hexadecimal and raw, either way round."""
        size = 16 if value >= 1 << 64 else 8
        raw = (value.to_bytes(size, "little"), value.to_bytes(size, "big"))
        double = np.float64(value).tobytes() if value < 1 << 53 else raw[0]
        return cls(name, (str(value).encode(), f"{value:x}".encode(), f"{value:X}".encode(), *raw, double))

    @classmethod
    def count(cls, name: str, value: int) -> Secret:
        text = str(value).encode()
        return cls(name, (np.float64(value).tobytes(), base64.b64encode(text)), number=value)

    @classmethod
    def digests(cls, name: str, data: bytes) -> Secret:
        """Of `data`, unsalted: a fingerprint. The first eight bytes are enough, for who shortens it."""
        heads = [hashlib.new(kind, data).digest()[:8] for kind in ("sha256", "sha1", "md5", "blake2b", "sha512")]
        heads.append(hashlib.blake2b(data, digest_size=8).digest())
        return cls(name, tuple(form for head in heads for form in (head, head.hex().encode())))

    @classmethod
    def ratings(cls, name: str, values: Iterable[int]) -> Secret:
        sequence = tuple(values)
        raw = {
            np.array(shifted, kind).tobytes()
            for shifted in _shifts(sequence)
            for kind in ("i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<f2", "<f4", ">f4", "<f8", ">f8")
        }
        digits = "".join(map(str, sequence)).encode()
        return cls(name, (digits, *sorted(raw)), sequence=sequence)


@dataclass(frozen=True)
class Finding:
    secret: str
    where: str
    """The file and the views that lead to it: `mlflow.db > sqlite > base64 > pickle`."""
    around: str

    def __str__(self) -> str:
        return f"{self.secret} in {self.where}: {self.around}"


@dataclass
class Search:
    """Looks into what it is given and remembers what it found and how far it looked."""

    secrets: tuple[Secret, ...]
    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Files of a known kind that could not be read, so that nobody takes them for searched."""
    views: Counter[str] = field(default_factory=Counter)
    n_files: int = 0
    n_bytes: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._matchers = [matcher for secret in self.secrets for matcher in _matchers(secret)]

    @property
    def found(self) -> set[str]:
        return {finding.secret for finding in self.findings}

    def folder(self, folder: Path, *, but: Iterable[str] = ()) -> None:
        """Every file under `folder` and every name; `but` are names of files at its top."""
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if name in but:
                continue
            self.look(f"the name {name}", name.encode(errors="surrogateescape"))
            if path.is_symlink():
                self.look(f"the link {name}", bytes(path.readlink()))
            elif path.is_file():
                self.file(path, name)

    def file(self, path: Path, name: str) -> None:
        content = path.read_bytes()
        self.n_files += 1
        self.look(name, content)
        log = path.with_name(f"{path.name}-wal")
        if content.startswith(SQLITE) and log.exists():
            self.look(f"{name} with its log", _with_log(path, log))

    def look(self, where: str, content: bytes, depth: int = 0) -> None:
        """Search `content` and all its views."""
        mark = hashlib.blake2b(content, digest_size=16).digest()
        if not content or mark in self._seen:
            return
        self._seen.add(mark)
        self.n_bytes += len(content)
        for secret, matches in self._matchers:
            at = matches(content)
            if at is not None:
                around = content[max(at - 30, 0) : at + 50]
                self.findings.append(Finding(secret, where, repr(around)))
        if depth == MAX_DEPTH:
            return
        for kind, decode in DECODERS.items():
            try:
                for view in decode(content):
                    self.views[kind] += 1
                    self.look(f"{where} > {kind}", view, depth + 1)
            except UNREADABLE as error:
                if depth == 0:
                    self.unread.append(f"{where}: {kind}, {type(error).__name__}")

    def summary(self) -> str:
        views = ", ".join(f"{kind} {n:,}" for kind, n in sorted(self.views.items()))
        return (
            f"{self.n_files:,} files, {self.n_bytes / 1e6:.1f} MB with views ({views or 'no views'}); "
            f"{len(self.secrets)} secrets ({', '.join(secret.name for secret in self.secrets)})"
        )


Matcher = Callable[[bytes], int | None]


def _matchers(secret: Secret) -> Iterator[tuple[str, Matcher]]:
    """Each says where in some bytes the secret is, or None."""
    for needle in dict.fromkeys(secret.needles):
        yield secret.name, lambda content, needle=needle: at if (at := content.find(needle)) >= 0 else None
    if secret.number is not None:
        yield secret.name, _number_matcher(secret.number)
    if secret.sequence:
        yield secret.name, _sequence_matcher(secret.sequence)


UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
EDGE = rb"[\t\r\n -\-/:-@\[-`{-~]"  # printable, and neither letter, digit nor point


def _number_matcher(value: int) -> Matcher:
    grouped = f"{value:,}"
    mantissa = f"{value:e}".split("e")[0].rstrip("0")
    forms = (str(value), grouped, grouped.replace(",", "_"), grouped.replace(",", " "), grouped.replace(",", "'"))
    plain = "|".join(map(re.escape, forms)).encode()
    exponent = rf"{re.escape(mantissa)}0*[eE]\+?0*{len(str(value)) - 1}".encode()
    quick = [*(form.encode() for form in forms), mantissa.encode()]
    token = re.compile(
        rb"(?:\A|(?<=" + EDGE + rb"))(?:(?:" + plain + rb")(?:\.0+)?|" + exponent + rb")(?=\Z|" + EDGE + rb"|\.(?!\d))"
    )

    def matches(content: bytes) -> int | None:
        if not any(form in content for form in quick):
            return None
        for match in token.finditer(content):
            start = max(match.start() - 36, 0)
            inside = (start + uuid.start() <= match.start() < start + uuid.end() for uuid in _uuids(content, match))
            if not any(inside):  # four digits of a random name are no count
                return match.start()
        return None

    return matches


def _uuids(content: bytes, match: re.Match[bytes]) -> Iterator[re.Match[bytes]]:
    return UUID.finditer(content[max(match.start() - 36, 0) : match.end() + 36])


NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def _sequence_matcher(sequence: tuple[int, ...]) -> Matcher:
    alphabets, wanted = [], []
    for shifted in _shifts(sequence):
        codes = {value: at + 1 for at, value in enumerate(sorted(set(shifted)))}
        alphabets.append({f"{value}{zeros}".encode(): code for value, code in codes.items() for zeros in ("", ".0")})
        wanted.append(bytes(codes[value] for value in shifted))

    def matches(content: bytes) -> int | None:
        numbers = NUMBER.findall(content)
        if len(numbers) < len(sequence):
            return None
        for alphabet, want in zip(alphabets, wanted, strict=True):
            symbols = bytes(alphabet.get(number, 0) for number in numbers)
            for stride in STRIDES:
                if any(want in symbols[start::stride] for start in range(stride)):
                    return 0
        return None

    return matches


def _shifts(sequence: tuple[int, ...]) -> list[tuple[int, ...]]:
    """As ratings, as levels from zero, and centred."""
    low, middle = min(sequence), (min(sequence) + max(sequence)) // 2
    return [tuple(value - by for value in sequence) for by in (0, low, middle)]


# Decoders: bytes to views. Each finds its encoding anywhere in the bytes, unless it can only be a whole file.

PRINTABLE = re.compile(rb"[\t\r\n -~]{6,}")  # what is escaped is, or there were no need
ESCAPE = re.compile(rb"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrt"'/\\]))""")
PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _escapes(content: bytes) -> Iterator[bytes]:
    """Of JSON and Python, one level of them."""

    def plain(match: re.Match[bytes]) -> bytes:
        wide, narrow, letter = match.groups()
        if wide:
            return chr(int(wide, 16)).encode(errors="surrogatepass")
        return bytes([int(narrow, 16)]) if narrow else PLAIN.get(letter, letter)

    runs = (match.group() for match in PRINTABLE.finditer(content) if b"\\" in match.group())
    yield from _together(ESCAPE.sub(plain, run) for run in runs)


def _address(content: bytes) -> Iterator[bytes]:
    runs = (match.group() for match in PRINTABLE.finditer(content) if b"%" in match.group())
    yield from _together(plain for run in runs if (plain := unquote_to_bytes(run)) != run)


WIDE = re.compile(rb"(?:[\t\r\n -~]\0){6,}")


def _utf16(content: bytes) -> Iterator[bytes]:
    yield from _together(match.group()[::2] for match in WIDE.finditer(content))


WORD = re.compile(rb"[A-Za-z0-9+/_-]{11,}={0,2}")  # eight bytes have eleven letters
# Possessive, and from the start of a word: a long word without line breaks must not be tried again from every letter.
WRAPPED = re.compile(rb"(?<![A-Za-z0-9+/_-])(?:[A-Za-z0-9+/_-]{60,}+\r?\n)++[A-Za-z0-9+/_-]*={0,2}")
URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _base64(content: bytes) -> Iterator[bytes]:
    words = [match.group() for pattern in (WORD, WRAPPED) for match in pattern.finditer(content)]
    words = [word.translate(URL_SAFE, b"\r\n=") for word in dict.fromkeys(words)]
    for start in range(4):  # a word may begin before what was encoded
        yield from _together(map(_unbase64, (word[start:] for word in words)))


def _unbase64(word: bytes) -> bytes:
    whole = len(word) - (len(word) % 4 == 1)
    return binascii.a2b_base64(word[:whole] + b"=" * (-whole % 4))


HEX = re.compile(rb"(?:[0-9a-fA-F][: ]?){16,}")


def _hex(content: bytes) -> Iterator[bytes]:
    words = [match.group().translate(None, b": ") for match in HEX.finditer(content)]
    for start in range(2):
        rest = (word[start:] for word in words)
        yield from _together(binascii.unhexlify(word[: len(word) // 2 * 2]) for word in rest)


def _together(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Large pieces one by one, small ones in one view, a line each."""
    small = []
    for piece in pieces:
        if len(piece) < SMALL:
            small.append(piece)
        else:
            yield piece
    if small:
        yield b"\n".join(dict.fromkeys(small))


STREAMS: dict[bytes, Callable[[], Any]] = {
    rb"\x1f\x8b\x08": lambda: zlib.decompressobj(31),
    rb"\x78[\x01\x5e\x9c\xda]": zlib.decompressobj,
    rb"BZh[1-9]1AY&SY": bz2.BZ2Decompressor,
    rb"\xfd7zXZ\x00": lzma.LZMADecompressor,
}
STREAM = [(re.compile(magic, re.DOTALL), make) for magic, make in STREAMS.items()]


def _compressed(content: bytes) -> Iterator[bytes]:
    """gzip, zlib, bzip2 and xz."""
    window = memoryview(content)
    for magic, make in STREAM:
        for match in magic.finditer(content):
            rest = window[match.start() :]
            try:
                plain = make().decompress(rest)
            except BROKEN:
                plain = _until_it_breaks(make(), rest)
            if len(plain) >= 4:
                yield plain


BROKEN = (zlib.error, OSError, ValueError, lzma.LZMAError, EOFError)


def _until_it_breaks(stream: Any, rest: memoryview) -> bytes:
    """What a stream gives that was cut short or overwritten."""
    plain = []
    with suppress(*BROKEN):
        for at in range(len(rest)):
            plain.append(stream.decompress(rest[at : at + 1]))
    return b"".join(plain)


ZSTD = re.compile(rb"\x28\xb5\x2f\xfd")


def _zstd(content: bytes) -> Iterator[bytes]:
    for match in ZSTD.finditer(content):
        plain = []
        with suppress(OSError), pa.CompressedInputStream(pa.py_buffer(content[match.start() :]), "zstd") as stream:
            while piece := stream.read(1):  # byte by byte, so that what follows the stream cannot spoil it
                plain.append(piece)
        yield b"".join(plain)


def _archive(content: bytes) -> Iterator[bytes]:
    """Members of zip and tar files, with their names."""
    if b"PK\x05\x06" in content:
        start = max(content.find(b"PK\x03\x04"), 0)
        by_chance = nullcontext() if start == 0 else suppress(zipfile.BadZipFile)
        with by_chance, zipfile.ZipFile(io.BytesIO(content[start:])) as archive:
            yield "\n".join(archive.namelist()).encode()
            yield from map(archive.read, archive.namelist())
    if content[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            yield from (archive.extractfile(member).read() for member in archive if member.isfile())  # type: ignore[union-attr]


PICKLE = re.compile(rb"\x80[\x02-\x05]", re.DOTALL)
ARRAY_TYPE = re.compile(r"[iuf][1248]")  # the byte order stands apart


def _pickle(content: bytes) -> Iterator[bytes]:
    """What pickles hold, without running them: their texts, bytes and numbers, and the arrays among the bytes."""
    starts = [match.start() for match in PICKLE.finditer(content)]
    if content.endswith(b".") and content[:1] in b"(cIFVSL]}l":
        starts.append(0)  # the old protocols have no mark
    for start in starts:
        texts, raw = [], []
        stream = io.BytesIO(content)
        stream.seek(start)
        with suppress(Exception):  # whatever random bytes make the parser say; what came before counts
            for operation, argument, _ in pickletools.genops(stream):
                if isinstance(argument, bytes | bytearray):
                    raw.append(bytes(argument))
                elif argument is not None and operation.name not in ("PROTO", "FRAME", "MEMOIZE"):
                    texts.append(str(argument))
        raw += [text.encode("latin-1") for text in texts if _is_bytes_in_disguise(text)]
        yield "\n".join(texts).encode(errors="surrogatepass")
        yield from raw
        for kind in {order + text for text in texts if ARRAY_TYPE.fullmatch(text) for order in ("<", ">")}:
            yield from (_lines(np.frombuffer(one, kind)) for one in raw if len(one) % np.dtype(kind).itemsize == 0)


def _is_bytes_in_disguise(text: str) -> bool:
    """Protocol 2 and older write bytes as the text of these letters."""
    return not text.isascii() and max(text) <= "\xff"


def _numpy(content: bytes) -> Iterator[bytes]:
    if content.startswith(b"\x93NUMPY"):
        yield _lines(np.load(io.BytesIO(content), allow_pickle=False))


def _safetensors(content: bytes) -> Iterator[bytes]:
    if content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        with suppress(safetensors.SafetensorError):
            for array in safetensors.numpy.load(content).values():
                yield _lines(array)


def _table(content: bytes) -> Iterator[bytes]:
    """Parquet and Arrow: columns, names, what else is said of them, and how many rows."""
    if content[:4] == b"PAR1" == content[-4:]:
        yield from _columns(pyarrow.parquet.read_table(io.BytesIO(content)))
    if content.startswith(b"ARROW1"):
        yield from _columns(pa.ipc.open_file(io.BytesIO(content)).read_all())


def _columns(table: pa.Table) -> Iterator[bytes]:
    about = {key.decode(): value.decode(errors="replace") for key, value in (table.schema.metadata or {}).items()}
    yield "\n".join([str(table.num_rows), *table.column_names, *about.values()]).encode()
    for column in table.flatten().columns:
        values = column.to_pylist()
        yield from (value for value in values if isinstance(value, bytes))
        yield "\n".join(_cell(value) for value in values if not isinstance(value, bytes)).encode()


def _cell(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


SQLITE = b"SQLite format 3\0"


def _sqlite(content: bytes) -> Iterator[bytes]:
    """Every column of every table as text, and binary cells one by one. Free pages are seen in the raw bytes."""
    if content.startswith(SQLITE):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "copy.db"
            path.write_bytes(content[:18] + b"\1\1" + content[20:])  # no log is with it, so read it without one
            with closing(sqlite3.connect(path)) as database:
                database.text_factory = bytes
                kind = "SELECT name FROM sqlite_master WHERE type = 'table'"
                for (table,) in database.execute(kind).fetchall():
                    yield from _sql_columns(database.execute(f'SELECT * FROM "{table.decode()}"').fetchall())


def _sql_columns(rows: list[tuple[Any, ...]]) -> Iterator[bytes]:
    for column in zip(*rows, strict=True):
        cells = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in column if cell is not None]
        yield b"\n".join(cells)
        yield from (cell for cell in dict.fromkeys(cells) if len(cell) >= SMALL or b"\0" in cell or b"\x80" in cell)


def _with_log(path: Path, log: Path) -> bytes:
    """The database as it is once its log is written into it."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name("copy.db-wal"))
        with closing(sqlite3.connect(copy)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return copy.read_bytes()


def _lines(array: Any) -> bytes:
    return "\n".join(map(str, np.asarray(array).ravel().tolist())).encode()


UNREADABLE = (sqlite3.Error, zipfile.BadZipFile, tarfile.TarError, pa.ArrowException, OSError, ValueError)

DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "sqlite": _sqlite,
    "archive": _archive,
    "compressed": _compressed,
    "zstd": _zstd,
    "pickle": _pickle,
    "safetensors": _safetensors,
    "table": _table,
    "numpy": _numpy,
    "base64": _base64,
    "hex": _hex,
    "escapes": _escapes,
    "address": _address,
    "utf16": _utf16,
}
