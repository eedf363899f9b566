from __future__ import annotations

import gzip
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from models.errors import NotReleasable, SpecError, ValidationFailed
from models.privacy.specification import Preferences
from models.ratings import Ratings, RatingScale
from tasks.loading import Loaded, load
from tasks.preferences import PreferenceTable, read_preferences
from tasks.preferences_source import PreferencesSource
from tasks.rating_files import RatingsSource
from tasks.table import RatingTable
from tasks.validation import Minimums, explain, validate
from tests.local_server import serving

RATINGS = "user,item,rating\nann,x,5\nann,y,3\nbob,x,1\ncat,y,4\n"
SECRET = "secret-4711"
USER_EPSILON = "user,epsilon\nbob,0.25\nann,0\nstranger,0.7\n"
USER_LEVEL = "level,user,since\nhigh,bob,2020\nlow,ann,2021\n"
PAIR_EPSILON = "user,item,epsilon\nann,y,0.25\nstranger,x,0.1\nbob,elsewhere,0.1\ncat,y,3\n"
LEVELS = {"low": 0.1, "high": 0.6}


def loaded(text: str, unit: Any = "rating", **settings: Any) -> Loaded:
    Path("r.csv").write_text(RATINGS)
    path = Path(settings.pop("path", "p.csv"))
    path.write_text(text)
    declared = {"default": 0.5, **({} if "levels" in settings else {"cap": 1}), **settings}
    source = PreferencesSource(path=str(path), **declared)
    return load(RatingsSource(path="r.csv"), None, RatingScale(low=1, high=5), source, unit)


def asked(ratings: Ratings) -> dict[tuple[str, str], float]:
    assert ratings.own_epsilon is not None
    return {
        (ratings.user_labels[user], ratings.catalogue.items[item]): float(epsilon)
        for user, item, epsilon in zip(ratings.users, ratings.items, ratings.own_epsilon, strict=True)
    }


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_shape_gives_each_rating_its_own_epsilon_and_the_rest_the_default() -> None:
    by_user = asked(validate(loaded(USER_EPSILON), Minimums()))
    assert by_user == {("ann", "x"): 0, ("ann", "y"): 0, ("bob", "x"): 0.25, ("cat", "y"): 0.5}
    by_level = asked(validate(loaded(USER_LEVEL, levels=LEVELS), Minimums()))
    assert by_level == {("ann", "x"): 0.1, ("ann", "y"): 0.1, ("bob", "x"): 0.6, ("cat", "y"): 0.5}
    by_pair = asked(validate(loaded(PAIR_EPSILON), Minimums()))
    assert by_pair == {("ann", "x"): 0.5, ("ann", "y"): 0.25, ("bob", "x"): 0.5, ("cat", "y"): 3}
    assert asked(validate(loaded(USER_EPSILON, unit="user"), Minimums())) == by_user


def test_ids_join_whatever_their_type() -> None:
    """pandas makes floats of an id column that once had a null; Arrow writes large ones as 1e+15."""
    ids = [12345678900, 10**15, 7]
    pa.parquet.write_table(pa.table({"user": ids, "item": ["x", "x", "y"], "rating": [1, 5, 3]}), "r.parquet")
    for of_type in (pa.float64(), pa.int64(), pa.string()):
        asked_ids = pa.array(ids[:2], pa.int64()).cast(of_type)
        pa.parquet.write_table(pa.table({"user": asked_ids, "epsilon": [0.25, 0.0]}), "p.parquet")
        source = PreferencesSource(path="p.parquet", default=0.5, cap=1)
        ratings = validate(load(RatingsSource(path="r.parquet"), None, RatingScale(low=1, high=5), source), Minimums())
        assert sorted(asked(ratings).values()) == [0, 0.25, 0.5]


@pytest.mark.parametrize("text", ["user,epsilon\nAnn,0\n", "user,item,epsilon\nann,X,0\n"])
def test_a_table_that_concerns_nobody_is_refused_and_not_taken_for_the_default(text: str) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        validate(loaded(text), Minimums())
    assert [rule.partition("]")[0] for rule in refusal.value.rules[:-1]] == ["[preference-join"]


def test_without_preferences_nobody_has_an_epsilon_of_their_own() -> None:
    Path("r.csv").write_text(RATINGS)
    ratings = validate(load(RatingsSource(path="r.csv"), None, RatingScale(low=1, high=5)), Minimums())
    assert ratings.own_epsilon is None


def test_it_is_read_from_wherever_ratings_are(tmp_path: Path) -> None:
    with sqlite3.connect("p.db") as database:
        database.execute("CREATE TABLE asked (user, epsilon)")
        database.executemany("INSERT INTO asked VALUES (?, ?)", [("bob", 0.25), ("ann", 0), ("stranger", "0.7")])
    database.close()
    pa.parquet.write_table(pa.table({"user": ["bob", "ann", "stranger"], "epsilon": [0.25, 0.0, 0.7]}), "p.parquet")
    Path("p.tsv").write_text(USER_EPSILON.replace(",", "\t"))
    Path("p.csv.gz").write_bytes(gzip.compress(USER_EPSILON.encode()))
    Path("own.txt").write_text("who;eps\nbob;0.25\nann;0\nstranger;0.7\n")
    own = {"path": "own.txt", "delimiter": ";", "columns": {"user": "who", "epsilon": "eps"}}
    with serving({"/p.csv": USER_EPSILON.encode()}) as site:
        for settings in (
            {"path": "sqlite:///p.db", "table": "asked"},
            {"path": "sqlite:///p.db", "query": "SELECT epsilon, user FROM asked"},
            *({"path": name} for name in ("p.parquet", "p.tsv", "p.csv.gz", f"{site.address}/p.csv")),
            own,
        ):
            table = read_preferences(PreferencesSource(default=0.5, cap=1, **settings), "rating")
            found = {table.user_labels[user]: float(own) for user, own in zip(table.users, table.epsilon, strict=True)}
            assert found == {"bob": 0.25, "ann": 0, "stranger": 0.7}, settings


@pytest.mark.parametrize("pairs", [True, False])
def test_the_join_is_what_a_dictionary_would_find(pairs: bool) -> None:
    rng = np.random.default_rng(3)
    n_users, n_items = 50, 30
    rated = rng.permutation(n_users * n_items)[:600]
    labels = tuple(f"u{user}" for user in range(n_users))
    items = tuple(f"i{item}" for item in range(n_items))
    ratings = RatingTable(
        (rated // n_items).astype(np.int32), (rated % n_items).astype(np.int32), labels, items, np.ones(600, np.float32)
    )
    others = tuple(reversed([*labels[::2], "stranger", "another"]))
    other_items = ("elsewhere", *items[5:])
    cells = rng.permutation(len(others) * (len(other_items) if pairs else 1))[: 400 if pairs else 20]
    users, own = cells % len(others), rng.random(len(cells))
    table = PreferenceTable(
        users.astype(np.int32), others, (cells // len(others)).astype(np.int32) if pairs else None,
        other_items if pairs else (), own, own, 0.125,
    )  # fmt: skip
    lines = {
        (others[cell % len(others)], other_items[cell // len(others)] if pairs else None): value
        for cell, value in zip(cells, own, strict=True)
    }
    expected = [lines.get((labels[r // n_items], items[r % n_items] if pairs else None), 0.125) for r in rated]
    assert table.own_epsilon(ratings).tolist() == expected
    assert len(set(expected)) > 10


@pytest.mark.parametrize(
    ("text", "rules", "rows"),
    [
        ("user,epsilon\nann,1\n,1\n", ["preference-user-present"], "2."),
        ("user,epsilon\nann,\nbob,NaN\n", ["preference-present"], "1, 2."),
        ("user,epsilon\nann,1\nbob,much\n", ["preference-known"], "2."),
        ("user,epsilon\nann,1_0\nbob,٣\n", ["preference-known"], "1, 2."),
        ("user,epsilon\nann,-1\n", ["preference-range"], "1."),
        ("user,epsilon\nann,1000.5\nbob,1000\ncat,0\n", ["preference-range"], "1."),
        ("user,epsilon\nann,inf\n", ["preference-range"], "1."),
        ("user,epsilon\nann,1\nbob,1\nann,1\n", ["one-preference-each"], "1, 3."),
        ("user,item,epsilon\nann,x,1\nann,,1\n", ["preference-item-present"], "2."),
        ("user,item,epsilon\nann,x,1\nann,y,1\nann,x,2\n", ["one-preference-each"], "1, 3."),
        ("user,level\nann,low\nbob,middling\n", ["preference-known"], "2."),
        ("user,level\nann,low\nbob,\n", ["preference-present"], "2."),
    ],
)
def test_a_bad_line_breaks_its_rule_and_no_other(text: str, rules: list[str], rows: str) -> None:
    settings = {"levels": LEVELS} if "level" in text else {}
    table = loaded(text, **settings)
    with pytest.raises(ValidationFailed) as refusal:
        validate(table, Minimums())
    *sentences, _ = refusal.value.rules
    assert [sentence.split("]")[0].removeprefix("[") for sentence in sentences] == rules
    for secret in ("ann", "bob", "middling", "much", "1000.5"):
        assert secret not in str(refusal.value)
    (line,) = explain(table, Minimums())
    assert line.endswith(f"Data rows of the preferences: {rows}")


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("user,level\nann,low\n", {}, "declared: say what they stand for with --levels"),
        ("user,epsilon\nann,1\n", {"levels": LEVELS}, "leave --levels out"),
        ("user,item,level\nann,x,low\n", {"levels": LEVELS}, "one line a user"),
        ("user,item,epsilon\nann,x,1\n", {"unit": "user"}, "one line a user"),
        ("who,epsilon\nann,1\n", {}, "no column is named user"),
        ("user,eps\nann,1\n", {}, "no column is named epsilon"),
        ("user,epsilon\n", {}, "has no preferences below"),
        ("", {}, "one line per preference"),
        (f"{SECRET},0.1\n", {}, "no column is named user or epsilon"),
    ],
)
def test_a_table_of_another_shape_is_refused_in_a_sentence(text: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as refusal:
        loaded(text, **settings)
    assert SECRET not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_declared_is_public_and_the_table_is_not() -> None:
    source = PreferencesSource(path="p.csv", default=0.5, levels=LEVELS)
    assert source.declared == Preferences(default=0.5, levels=LEVELS)
    table = loaded(USER_EPSILON).preferences
    assert repr(table) == "<private preferences, not validated>"
    with pytest.raises(NotReleasable):
        pickle.dumps(table)
