"""Tables that are not text: Parquet files and SQLite databases whose columns hold any type, and what is asked of them.

And tables of preferences, in the three shapes that there are and in some that there are not.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import cycle, islice
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.fuzz.case import SECRET_PASSWORD, SECRET_RATING, SECRET_USER, Case
from tests.fuzz.ratings_files import (
    FORMATS_AS_WRITTEN,
    IDS,
    RATINGS,
    ROWS,
    USERS,
    commands,
    damaged_bytes,
    parquet_bytes,
)

COLUMNS = {
    "users": [f"{SECRET_USER}-{user}" for user, _, _ in ROWS],
    "items": [int(item) for _, item, _ in ROWS],
    "ratings": [float(rating) for _, _, rating in ROWS],
    "large": [2**63 - 1, 2**53 + 1, -1],
    "huge": [np.uint64(2**64 - 1)],
    "odd floats": [float("nan"), float("inf"), -0.0, 1e300, float(SECRET_RATING)],
    "flags": [True, False, None],
    "nothing": [None],
    "decimals": [Decimal(SECRET_RATING), Decimal("1.50000")],
    "days": [date(2001, 1, 1)],
    "moments": [datetime(2001, 1, 1, tzinfo=UTC)],
    "bytes": [SECRET_USER.encode(), b"\xff\x00"],
    "lists": [[SECRET_USER], []],
    "records": [{"user": SECRET_USER}],
    "odd text": [*USERS, *IDS],
}
"""Values of a column, to be repeated as often as it has rows."""

NAMES = ["user", "item", "rating", "user", "item", "rating", "USER", "movieId", "extra", "", "user\0", "[/red]", '"']


@st.composite
def typed_columns(draw: st.DrawFn) -> tuple[list[str], list[list[Any]]]:
    """Names and columns: mostly the three that are wanted, of the types that they may have."""
    n_rows = draw(st.sampled_from([24, 24, 24, 1, 0]))
    names, kinds = ["user", "item", "rating"], ["users", "items", "ratings"]
    for _ in range(draw(st.integers(0, 2))):
        kinds[draw(st.integers(0, 2))] = draw(st.sampled_from(sorted(COLUMNS)))
    if draw(st.integers(0, 3)) == 0:
        names[draw(st.integers(0, 2))] = draw(st.sampled_from(NAMES))
        names.append(draw(st.sampled_from(NAMES)))
        kinds.append(draw(st.sampled_from(sorted(COLUMNS))))
    return names, [list(islice(cycle(COLUMNS[kind]), n_rows)) for kind in kinds]


@st.composite
def parquet_cases(draw: st.DrawFn) -> Case:
    names, columns = draw(typed_columns())
    raw = parquet_bytes(names, [pa.array(column) for column in columns])
    raw = draw(damaged_bytes(raw)) if draw(st.integers(0, 3)) == 0 else raw
    checksum = draw(st.sampled_from([(), (), (), ("--checksum", f"sha256:{'0' * 64}"), ("--checksum", "md5:")]))
    return Case("parquet", draw(commands("--ratings", "r.parquet", "--scale", "1:5:1", *checksum)), {"r.parquet": raw})


QUERIES = [
    "SELECT * FROM r", "SELECT user, item, rating FROM r", "select item as user, user as item, rating from r", "",
    "SELECT user, item FROM r", "SELECT 1 AS user, 2 AS item, 3 AS rating", "SELECT * FROM r WHERE 0",
    "SELECT * FROM nowhere", "SELEKT *", "DELETE FROM r", "DROP TABLE r", "INSERT INTO r SELECT * FROM r",
    "SELECT 1; DROP TABLE r", "PRAGMA query_only = OFF", "ATTACH 'new.db' AS new", "VACUUM INTO 'new.db'", ";", "--",
    "SELECT user, item, rating FROM r WHERE user LIKE '%:x' AND item = :y AND rating > ?", "\0", "SELECT\n*\nFROM r",
    f"SELECT {SECRET_USER} FROM r", "SELECT user, item, CAST(user AS BLOB) AS rating FROM r", "SELECT 1/0, abs(-9e999)",
    "WITH RECURSIVE n(user, item, rating) AS (SELECT 1, 1, 1 UNION ALL SELECT user + 1, 1, 1 FROM n LIMIT 30) "
    "SELECT * FROM n",
]  # fmt: skip
TABLES = ["r", "r", "r", "main.r", "R", "nowhere", "sqlite_master", "main.", ".r", "v", "a.b.c", '"r"', "r; DROP", ""]
ADDRESSES = [
    "sqlite:///r.db", "sqlite:///r.db", "sqlite:///r.db", "sqlite:///r.db", "sqlite:///./r.db", "sqlite:///nowhere.db",
    "sqlite://", "sqlite:///", "sqlite:///.", "sqlite:///r.csv", "SQLITE:///r.db", "sqlite+pysqlite:///r.db",
    "sqlite:///file:r.db?mode=rw&uri=true", "sqlite:///r.db?timeout=x", "sqlite+aiosqlite:///r.db", "sqlite+x:///r.db",
    "${NOWHERE}", "${ADDRESS}", "${NOWHERE}/x", "r.db", "://", "x://", "mysql://h/d", "oracle://h/d", "jdbc:x://h/d",
    f"postgresql://me:{SECRET_PASSWORD}@127.0.0.1:1/d", f"postgresql://127.0.0.1:1/d?password={SECRET_PASSWORD}",
    f"postgresql://me:{SECRET_PASSWORD}@h:port/d", "postgresql://127.0.0.1:1/d", "postgresql://me@127.0.0.1:1",
    f"sqlite:///r.db?api_key={SECRET_PASSWORD}", f"http://me:{SECRET_PASSWORD}@127.0.0.1:1/r.csv",
    f"https://127.0.0.1:1/r.csv?token={SECRET_PASSWORD}", "http://127.0.0.1:1/r.csv", "http://[::1/r.csv", "http://",
    "https://me:${NOWHERE}@127.0.0.1:1/r.csv", "http://127.0.0.1:99999/r.csv",
]  # fmt: skip


def is_sqlite(value: Any) -> bool:
    return abs(value) < 2**63 if isinstance(value, int) else isinstance(value, float | str | bytes | None)


def database(names: list[str], columns: list[list[Any]]) -> bytes:
    """A SQLite file with the table `r` and a view `v` of it; what SQLite has no type for is text."""
    cells = [[value if is_sqlite(value) else str(value) for value in column] for column in columns]
    made = sqlite3.connect(":memory:")
    escaped = [name.replace("\0", "").replace('"', '""') for name in names]
    lowered = [name.lower() for name in escaped]
    distinct = [f'"{name}{at if lowered[at] in lowered[:at] else ""}"' for at, name in enumerate(escaped)]
    made.execute(f"CREATE TABLE r ({', '.join(distinct)})")
    made.executemany(f"INSERT INTO r VALUES ({', '.join('?' * len(names))})", list(zip(*cells, strict=True)))
    made.execute("CREATE VIEW v AS SELECT * FROM r")
    made.commit()
    return made.serialize()


@st.composite
def database_cases(draw: st.DrawFn) -> Case:
    raw = database(*draw(typed_columns()))
    raw = draw(damaged_bytes(raw)) if draw(st.integers(0, 3)) == 0 else raw
    asked = draw(
        st.sampled_from(TABLES).map(lambda name: ("--table", name))
        | st.sampled_from(QUERIES).map(lambda text: ("--query", text))
        | st.sampled_from(QUERIES).map(lambda text: ("--query", text))
        | st.sampled_from([(), ("--table", "r", "--query", "SELECT * FROM r"), ("--table", "r", "--format", "csv")])
    )
    arguments = ("--ratings", draw(st.sampled_from(ADDRESSES)), "--scale", "1:5:1", *asked)
    return Case("database", draw(commands(*arguments)), {"r.db": raw}, {"ADDRESS": "sqlite:///r.db"})


SHAPES = {
    "epsilon": (["user", "epsilon"], [[f"{SECRET_USER}-{user}", "0.5"] for user in range(6)]),
    "level": (["user", "level"], [[f"{SECRET_USER}-{user}", "low"] for user in range(6)]),
    "item": (["user", "item", "epsilon"], [[user, item, "0.5"] for user, item, _ in ROWS]),
}
ASKED = ["0", "1e-7", "1e-6", "-1", "1000", "1000.1", "low", "high", "middling", f"{SECRET_USER}", *RATINGS]
DECLARED = ["0.5", "0.5", "1e-6", "1e-7", "1000", "1001", "0", "-1", "nan", "inf", "x", "", "1_0"]
LEVELS = ["low=0.1,high=1", "low=0.1,high=1", "low=0", "low", "low=", "=1", "low=x", "low=0.1,low=0.2", "low=1e-7",
          "low=-1", "[/red]=1", "low=1001", f"{'x' * 3000}=1", "high=1", ","]  # fmt: skip


@st.composite
def preferences_cases(draw: st.DrawFn) -> Case:
    shape = draw(st.sampled_from(sorted(SHAPES)))
    header, rows = list(SHAPES[shape][0]), [list(row) for row in SHAPES[shape][1]]
    for _ in range(draw(st.integers(0, 2))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        column = draw(st.integers(0, len(row) - 1))
        row[column] = draw(st.sampled_from(ASKED if column == len(row) - 1 else (USERS + IDS, IDS)[column]))
    match draw(st.sampled_from(["as it is"] * 4 + ["header", "line", "again", "few"])):
        case "header":
            header[draw(st.integers(0, len(header) - 1))] = draw(st.sampled_from(["", "x", "user", "level", "epsilon"]))
        case "line":
            rows[draw(st.integers(0, len(rows) - 1))].append("more")
        case "again":
            rows.append(list(rows[0]))
        case "few":
            del rows[draw(st.integers(0, 1)) :]
    name = draw(st.sampled_from(["p.csv", "p.csv", "p.tsv", "p.parquet"]))
    raw = FORMATS_AS_WRITTEN[name.removeprefix("p.")].write(header, rows)
    raw = draw(damaged_bytes(raw)) if draw(st.integers(0, 5)) == 0 else raw
    told = {"--preferences": name, "--default-epsilon": "0.5"}
    told |= {"--levels": "low=0.1,high=1"} if shape == "level" else {"--cap": "1"}
    if draw(st.integers(0, 2)) == 0:
        option, values = draw(st.sampled_from(sorted({
            "--preferences": [*ADDRESSES, "nowhere.csv", "."], "--default-epsilon": DECLARED, "--cap": DECLARED,
            "--levels": LEVELS, "--unit": ["user", "user", "rating", "item"], "--preferences-table": TABLES,
            "--preferences-query": QUERIES,
        }.items())))  # fmt: skip
        told[option] = draw(st.sampled_from(values))
    if draw(st.integers(0, 9)) == 0:
        del told[draw(st.sampled_from(sorted(told)))]
    films = FORMATS_AS_WRITTEN["csv"]
    good = films.write(list(films.header), [list(row) for row in ROWS])
    words = [word for option in told.items() for word in option]
    arguments = ("--ratings", films.name, *films.arguments, *words)
    return Case("preferences", draw(commands(*arguments)), {films.name: good, name: raw})
