"""Ratings files and items files, damaged at every level: a value, a line, the header, the bytes, the compression.

A format is one entry of FORMATS_AS_WRITTEN.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from tests.fuzz.case import SECRET_RATING, SECRET_USER, Case

Row = tuple[str, str, str]

ROWS: tuple[Row, ...] = tuple(
    (f"{SECRET_USER}-{user}", f"{item + 1}", f"{(user * item) % 5 + 1}") for user in range(6) for item in range(4)
)


@dataclass(frozen=True)
class AsWritten:
    """How a format is written: the name it is recognised by, its header, its rows, and what has to be said of it."""

    name: str
    write: Callable[[list[str], list[list[str]]], bytes]
    header: tuple[str, ...] = ()
    more_fields: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def delimited(delimiter: str) -> Callable[[list[str], list[list[str]]], bytes]:
    def write(header: list[str], rows: list[list[str]]) -> bytes:
        lines = [delimiter.join(row) for row in ([header] if header else []) + rows]
        return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")

    return write


def netflix(_: list[str], rows: list[list[str]]) -> bytes:
    """One file for all movies: `MOVIE:` where another begins, then `user,rating,date`."""
    lines, above = [], None
    for user, movie, *rest in [[*row, "", ""][: max(len(row), 2)] for row in rows]:
        if movie != above:
            lines.append(f"{movie}:")
        lines.append(",".join([user, *rest]))
        above = movie
    return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")


def parquet(header: list[str], rows: list[list[str]]) -> bytes:
    """Text in columns; what has no name in the header has none, and two columns may have the same."""
    width = max([len(header), *map(len, rows)])
    names = [*header, *[""] * width][:width]
    columns = [pa.array([row[at] if at < len(row) else None for row in rows], pa.string()) for at in range(width)]
    return parquet_bytes(names, columns)


def parquet_bytes(names: list[str], columns: list[pa.Array]) -> bytes:
    file = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_arrays(columns, names=names), file)
    return file.getvalue()


FORMATS_AS_WRITTEN = {
    "ml-100k": AsWritten("u.data", delimited("\t"), more_fields=("881250949",)),
    "ml-dat": AsWritten("ratings.dat", delimited("::"), more_fields=("978300760",)),
    "ml-csv": AsWritten("ratings.csv", delimited(","), ("userId", "movieId", "rating", "timestamp"), ("1",)),
    "netflix": AsWritten("combined_data_1.txt", netflix, more_fields=("2005-09-06",)),
    "yahoo-r3": AsWritten("ydata-ymusic-rating-study-v1_0-train.txt", delimited("\t")),
    "parquet": AsWritten("films.parquet", parquet, ("user", "item", "rating"), arguments=("--scale", "1:5:1")),
    "tsv": AsWritten("films.tsv", delimited("\t"), ("user", "item", "rating"), arguments=("--scale", "1:5:1")),
    "csv": AsWritten("films.csv", delimited(","), ("user", "item", "rating"), arguments=("--scale", "1:5:1")),
}

USERS = [f"{prefix}{SECRET_USER}{suffix}" for prefix, suffix in [
    ("=cmd|' /C calc'!", ""), ("../../etc/", ""), ("", "\u202eevil"), ("", "😀"), ("", "é" * 40), ("", "x" * 70_000),
    ("", " "), (" ", ""), ("", "\\"), ("", "'"), ("", '"'), ("{", "}"), ("[red]", "[/]"), ("%s%n", ""), ("",
    "\x1b[31m"),
    ("-", ""), ("@", ""), ("", "\u0000"), ("", "\u2028"), ("", "e\u0301"), ("$(id)", ""),
]]  # fmt: skip
IDS = ["", " ", "1", "01", "1.0", "1e0", "-1", "0", "9" * 25, "99999", "nan", "NaN", "NULL", "None", "\u0661", "zoë",
       "1 ", "\t", '"', '"1"', '""', ",", "::", "|", "\r", "\n", "\x00", "\ufeff1", "x" * 5000, "=1+1"]  # fmt: skip
RATINGS = [SECRET_RATING, f"-{SECRET_RATING}", f"{SECRET_RATING}e300", "", " ", "0", "5.0", "5.", ".5", "+4", "4,5",
    "1e0",
           "1e999", "-1e999", "inf", "-inf", "Infinity", "nan", "NaN", "NAN", "NA", "null", "good", "five", "1_0",
           "\u0663",
           "0x3", "3 ", '"3"', "3\x00", "4" * 400, "9" * 5000, "1e-400", "-0", "True", "3.0000000001",
           "½"]  # fmt: skip
HEADERS = ["", "user", "USER", "userid", "item", "rating", "Rating ", '"rating"', "timestamp", "\ufeffuser",
    "x" * 3000, "1",
           "[/red]", "{0}", "user\x00"]  # fmt: skip
SCALES = ["1:5:1", "0.5:5:0.5", "-1000:1000:2", "0:1:0.001", "1:5", "4:5:1", "1:5:1e-320", "5:1:1", "nan:5:1", "0:0:0",
          "1:5:0", "inf:inf:1", "-1:1:1e-9", "1:1.000000001:1e-12", "", ":", "1:5:1:1", "a:b:c",
          "1e400:5:1"]  # fmt: skip


@st.composite
def edited_rows(draw: st.DrawFn, form: AsWritten) -> tuple[list[str], list[list[str]]]:
    header = list(form.header)
    rows = [[*row, *form.more_fields] for row in ROWS]
    for _ in range(draw(st.integers(0, 2))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        column = draw(st.integers(0, 2))
        row[column % len(row)] = draw(st.sampled_from((USERS + IDS, IDS, RATINGS)[column]))
    match draw(st.sampled_from(["as it is"] * 3 + ["line", "header", "column", "few", "again", "text"])):
        case "line":
            row = rows[draw(st.integers(0, len(rows) - 1))]
            row[:] = draw(st.sampled_from([[], row[:-1], [*row, "more"], row * 2, [" ".join(row)], ["#", *row]]))
        case "header" if header:
            header[draw(st.integers(0, len(header) - 1))] = draw(st.sampled_from(HEADERS))
        case "header":
            header = ["user", "item", "rating", "timestamp"]
        case "column":
            at = draw(st.integers(0, 2))
            for row in rows:
                row[at % len(row)] = draw(st.just(""))
        case "few":
            del rows[draw(st.integers(0, 3)) :]
        case "again":
            rows += [list(row) for row in rows[: draw(st.integers(1, len(rows)))]]
        case "text":
            header = draw(st.sampled_from([[], header[:-1], header * 2, [*header, "more"], [*header, ""] * 3]))
    return header, rows


def flipped(raw: bytes, at: int, bit: int) -> bytes:
    at %= max(len(raw), 1)
    return raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :] if raw else raw


@st.composite
def damaged_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    match draw(st.sampled_from(["whole"] * 6 + ["flip", "cut", "code", "newline", "insert", "delimiter", "other"])):
        case "flip":
            for _ in range(draw(st.integers(1, 4))):
                raw = flipped(raw, draw(st.integers(0, 5000)), draw(st.integers(0, 7)))
        case "cut":
            raw = raw[: draw(st.integers(0, len(raw)))]
        case "code":
            text = raw.decode("utf-8", "replace").replace("\0", "")
            raw = text.encode(draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32", "latin-1", "cp037"])), "replace")
        case "newline":
            raw = raw.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b"\n\r", b"\x0b", b" \n"])))
        case "insert":
            at = draw(st.integers(0, len(raw)))
            raw = (
                raw[:at] + draw(st.sampled_from([b"\0", b'"', b"'", b"\xff\xfe", b"\n", b"\r", b",", b"#"])) + raw[at:]
            )
        case "delimiter":
            old, new = draw(st.sampled_from([(b",", b";"), (b",", b"\t"), (b"\t", b" "), (b"::", b":"), (b"::", b",")]))
            raw = raw.replace(old, new)
        case "other":
            raw = draw(st.sampled_from([b"", b" \n\n", b"PAR1" * 9, b"PK\x03\x04", b"SQLite format 3\0", b"{}",
            raw * 40,
                                        b"\x1f\x8b", b"," * 3000, b'"' * 3001, b"x" * 3_000_000]))  # fmt: skip
    return raw


@st.composite
def compressed(draw: st.DrawFn, name: str, raw: bytes) -> tuple[str, bytes]:
    """The file's name and content, now and then gzipped, and now and then not what its name says."""
    match draw(st.sampled_from(["plain"] * 6 + ["gz", "gz cut", "gz flipped", "gz twice", "gz and more", "not gz"])):
        case "gz":
            return f"{name}.gz", gzip.compress(raw, mtime=0)
        case "gz cut":
            packed = gzip.compress(raw, mtime=0)
            return f"{name}.gz", packed[: draw(st.integers(0, len(packed)))]
        case "gz flipped":
            return f"{name}.gz", flipped(
                gzip.compress(raw, mtime=0), draw(st.integers(0, 5000)), draw(st.integers(0, 7))
            )
        case "gz twice":
            return f"{name}.gz", gzip.compress(gzip.compress(raw, mtime=0), mtime=0)
        case "gz and more":
            return f"{name}.gz", gzip.compress(raw, mtime=0) + b"more"
        case "not gz":
            return draw(st.sampled_from([(f"{name}.gz", raw), (name, gzip.compress(raw, mtime=0))]))
    return name, raw


ITEMS = "item,title,genres\n" + "".join(f"{item + 1},Title {item},a|b\n" for item in range(4))
ITEM_FILES = {
    "items.csv": ITEMS,
    "movies.dat": "".join(f"{item + 1}::Title {item} (1995)::a|b\n" for item in range(4)),
    "u.item": "".join(f"{item + 1}|Title {item}|01-Jan-1995||http://x|{'|'.join('01' * 9)}|0\n" for item in range(4)),
}
ODD_ITEMS = [
    "", "1", "1,1", "item", "1::", "|" * 23, "::::", '"', "1,\x00", "é", "5,x," + "|".join("abcdef"), "x" * 3000,
    "5,,", "1,T,|||",
    "item,item,title,title,genres", "movieId", "5,[/red],{0}", '5,"a ""quoted"" title",a', "5,T,a,more",
    "9::T::a|a|a", "5,=1+1,%s",
    f"{'9' * 30},T,a", "5|T|||x|" + "|".join("1" * 19), " 5 , T , a ", "item,title,title,genres", "genres,item,tags",
]  # fmt: skip
NO_PUBLISH = ("--folds", "2", "--no-publish")


def commands(*more: str) -> st.SearchStrategy[tuple[str, ...]]:
    """`validate` mostly, because its answer is quick; runs too, published and not."""
    return st.sampled_from(
        [("validate", "--folds", "2", *more)] * 4
        + [("run", *NO_PUBLISH, *more), ("run", "--folds", "2", *more), ("run", *more)]
    )


LEVELS = ("rows", "rows", "bytes", "compression", "arguments")


@st.composite
def levels(draw: st.DrawFn) -> set[str]:
    """Where this case is damaged: mostly at one level, so that the damage is met and not hidden by a coarser one."""
    return {draw(st.sampled_from(LEVELS)), draw(st.sampled_from(LEVELS))} if draw(st.integers(0, 3)) == 0 else {
        draw(st.sampled_from(LEVELS))
    }  # fmt: skip


@st.composite
def odd_arguments(draw: st.DrawFn) -> tuple[str, ...]:
    options = {
        "--scale": SCALES,
        "--format": ["auto", *FORMATS_AS_WRITTEN],
        "--columns": ["user=item,item=user", "rating=", "user=0", "a", "=", "user=userId", "user=user,rating=rating"],
        "--delimiter": [",", ";", "\t", "tab", '"', "\n", "\r", "é", "1", " ", "\\", "|"],
    }
    name = draw(st.sampled_from(sorted(options)))
    return name, draw(st.sampled_from(options[name]))


@st.composite
def ratings_cases(draw: st.DrawFn) -> Case:
    form = FORMATS_AS_WRITTEN[draw(st.sampled_from(sorted(FORMATS_AS_WRITTEN)))]
    damaged = draw(levels())
    header, rows = list(form.header), [[*row, *form.more_fields] for row in ROWS]
    if "rows" in damaged:
        header, rows = draw(edited_rows(form))
    name, raw = form.name, form.write(header, rows)
    if "bytes" in damaged:
        raw = draw(damaged_bytes(raw))
    if "compression" in damaged:
        name, raw = draw(compressed(name, raw))
    arguments = form.arguments + (draw(odd_arguments()) if "arguments" in damaged else ())
    files = {name: raw}
    if draw(st.integers(0, 3)) == 0:
        arguments += ("--items", "items.csv")
        files["items.csv"] = ITEMS.encode()
    return Case("ratings", draw(commands("--ratings", name, *arguments)), files)


@st.composite
def items_cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(ITEM_FILES)))
    lines = ITEM_FILES[name].splitlines()
    damaged = draw(levels())
    if damaged & {"rows", "arguments"}:
        lines[draw(st.integers(0, len(lines) - 1))] = draw(st.sampled_from([*ODD_ITEMS, lines[0], lines[-1]]))
    raw = "\n".join([*lines, ""]).encode()
    if "bytes" in damaged:
        raw = draw(damaged_bytes(raw))
    if "compression" in damaged:
        name, raw = draw(compressed(name, raw))
    form = FORMATS_AS_WRITTEN["csv"]
    good = form.write(list(form.header), [list(row) for row in ROWS])
    arguments = ("--ratings", form.name, *form.arguments, "--items", name)
    return Case("items", draw(commands(*arguments)), {form.name: good, name: raw})
