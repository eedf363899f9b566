from __future__ import annotations

import socket
import sqlite3
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from models.errors import EnvironmentFault, JaliError, SpecError
from models.ratings import RatingScale
from tasks import databases
from tasks.loading import load
from tasks.rating_files import RatingsSource, read_ratings
from tasks.table import RatingTable
from tasks.validation import Minimums, explain, validate

SECRET = "secret-4711"
SCALE = RatingScale(low=1, high=5)
EXPECTED = {("7", "10", 4.0), ("7", "2", 3.5), ("12", "10", 1.0)}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the table `films`, in both kinds."""
    url = f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    execute(
        url,
        "DROP TABLE IF EXISTS films",
        'CREATE TABLE films ("when" TEXT, rating NUMERIC(3, 1), User_Id INTEGER, item INTEGER)',
        "INSERT INTO films VALUES ('x', 4, 7, 10), ('y', 3.5, 7, 2), ('z', 1, 12, 10)",
    )
    return str(url)


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def triples(table: RatingTable) -> set[tuple[str, str, float]]:
    return {
        (table.user_labels[user], table.item_labels[item], float(value))
        for user, item, value in zip(table.users, table.items, table.ratings, strict=True)
    }


def read(path: str, **settings: Any) -> RatingTable:
    return read_ratings(RatingsSource(path=path, **settings))[1]


@pytest.mark.parametrize("rows_at_once", [2, 50_000])
def test_a_table_and_a_query_give_the_same_ratings_in_any_portions(
    address: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "ROWS_AT_ONCE", rows_at_once)
    assert triples(read(address, table="films")) == EXPECTED
    assert triples(read(address, query="SELECT * FROM films")) == EXPECTED
    renamed = "SELECT rating AS stars, item AS sku, user_id AS who FROM films WHERE 'a:b' LIKE '%:b' ;"
    columns = {"user": "who", "item": "sku", "rating": "stars"}
    assert triples(read(address, query=renamed, columns=columns)) == EXPECTED


def test_a_view_and_a_schema_are_read_too(address: str) -> None:
    execute(address, "DROP VIEW IF EXISTS lowest", "CREATE VIEW lowest AS SELECT * FROM films WHERE rating < 4")
    schema = "main" if address.startswith("sqlite") else "public"
    assert len(triples(read(address, table=f"{schema}.lowest"))) == 2
    execute(address, "DROP VIEW lowest")


def test_nulls_and_text_reach_validation_as_those_of_files_do(address: str) -> None:
    execute(
        address,
        "DROP TABLE IF EXISTS bad",
        'CREATE TABLE bad ("user" TEXT, item TEXT, rating TEXT)',
        "INSERT INTO bad VALUES ('a', '1', '5'), (NULL, '1', '4'), ('b', '', '3')",
        "INSERT INTO bad VALUES ('c', '2', 'good'), ('d', '2', 'NaN')",
    )
    loaded = load(RatingsSource(path=address, table="bad"), None, SCALE)
    lines = explain(loaded, Minimums())
    assert [line.split("]")[0].removeprefix("[") for line in lines] == [
        "user-present", "item-present", "rating-present", "rating-type",
    ]  # fmt: skip
    assert [line.split("Data rows: ")[1] for line in lines] == ["2.", "3.", "5.", "4."]


def test_types_may_change_from_row_to_row_where_a_database_lets_them(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE t (user, item, rating)")
        rows = [(1, "a", 5), ("1", b"\x00\xff", 4.5), (2.0, None, "3"), (2**70 * 1.0, 7, None)]
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    database.close()
    table = read(f"sqlite:///{tmp_path}/x.db", table="t")
    assert "1" in table.user_labels
    assert "00ff" in table.item_labels
    assert table.ratings[:3].tolist() == [5, 4.5, 3]
    assert np.isnan(table.ratings[3])


def test_nothing_is_ever_written(address: str) -> None:
    returning = 'DELETE FROM films RETURNING user_id AS "user", item, rating'
    changes = ("DROP TABLE films", "INSERT INTO films SELECT * FROM films", "SELECT * FROM films; DELETE FROM films")
    for query in (returning, *changes, "SELECT 1; COMMIT; BEGIN; DELETE FROM films; COMMIT"):
        with pytest.raises(SpecError):
            read(address, query=query)
    assert triples(read(address, table="films")) == EXPECTED


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"table": "nope"}, "has no table nope"),
        ({"table": "nowhere.films"}, "has no table nowhere.films|the table fails"),
        ({"table": "films", "columns": {"rating": "stars"}}, "no column is named stars"),
        ({"query": f"SELECT '{SECRET}' FROM nope"}, "the query fails"),
        ({"query": f"SELECT '{SECRET}' AS \"user\", item FROM films"}, "no column is named rating"),
        ({"query": "SELECT item, item, rating, user_id FROM films WHERE rating > 100"}, "has no ratings below"),
        ({"query": "not even SQL"}, "the query fails"),
    ],
)
def test_what_a_database_complains_about_is_one_sentence_of_ours(
    address: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence) as refusal:
        read(address, **settings)
    text = str(refusal.value)
    assert "\n" not in text
    assert SECRET not in text + str(refusal.value.__context__) + str(refusal.value.__cause__)


def test_a_query_that_fails_half_way_is_the_same_sentence(postgres: str) -> None:
    query = f"SELECT '{SECRET}' || n AS \"user\", n AS item, 1 / (3 - n) AS rating FROM generate_series(1, 5) n"
    with pytest.raises(SpecError, match="the query fails") as refusal:
        read(postgres, query=query)
    assert SECRET not in str(refusal.value) + str(refusal.value.__context__)


@pytest.mark.parametrize(
    ("address", "kind", "sentence"),
    [
        ("postgresql+psycopg://me:${PW}@127.0.0.1:1/db", EnvironmentFault, "does not answer"),
        ("postgresql+nodriver://me:${PW}@host/db", SpecError, "no driver is installed"),
        ("s3://bucket/films.csv", SpecError, "no driver is installed"),
    ],
)
def test_a_server_or_a_driver_that_is_not_there_is_one_sentence(
    address: str, kind: type[JaliError], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", SECRET)
    with pytest.raises(kind, match=sentence) as fault:
        read(address, table="films")
    assert SECRET not in str(fault.value)
    assert fault.value.__context__ is None


def test_a_server_that_is_silent_is_waited_for_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "ANSWER_SECONDS", 2)  # the least the driver takes
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = monotonic()
        with pytest.raises(EnvironmentFault, match="does not answer"):
            read(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db", table="films")
        assert monotonic() - began < 8


def test_a_login_that_is_refused_names_no_password(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    with pytest.raises(EnvironmentFault, match="let this user in") as fault:
        read(postgres.replace("postgres:@", "stranger:${PW}@"), table="films")
    assert SECRET not in str(fault.value) + str(fault.value.__context__)


@pytest.mark.parametrize("query", ["ATTACH 'new.db' AS new", "VACUUM INTO 'new.db'"])
def test_no_query_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.chdir(tmp_path)
    execute("sqlite:///films.db", "CREATE TABLE films (user, item, rating)")
    with pytest.raises(SpecError, match="the query fails"):
        read_ratings(RatingsSource(path="sqlite:///films.db", query=query))
    assert [path.name for path in tmp_path.iterdir()] == ["films.db"]


def test_a_sqlite_file_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database" * 1000)
    with pytest.raises(SpecError, match="the table fails"):
        read(f"sqlite:///{tmp_path}/x.db", table="films")
    with pytest.raises(SpecError, match="does not exist"):
        read(f"sqlite:///{tmp_path}/nope.db", table="films")
    assert not (tmp_path / "nope.db").exists()


def test_ratings_of_a_database_are_validated_like_others(address: str) -> None:
    loaded = load(RatingsSource(path=address, table="films"), None, RatingScale(low=0.5, high=5, step=0.5))
    assert sorted(validate(loaded, Minimums()).values.tolist()) == [1, 3.5, 4]
