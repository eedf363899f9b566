from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.job import Job
from flows.options import job_from
from models.errors import SpecError


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).touch()
    Path("c.yaml").write_text(
        "ratings: {path: a.csv, delimiter: ';'}\nscale: 1:5:1\nfolds: 7\nprivacy: {epsilon: 0.5, delta: 1.0e-7}\n"
        "settings: {pmf: {n_factors: 3, n_iterations: 4}}\n"
    )
    Path("policy.yaml").write_text("conservative: 0.3\n")


def job(config: str | None = "c.yaml", **given: Any) -> Job:
    return job_from(
        config,
        ratings=given.pop("ratings", {}),
        privacy=given.pop("privacy", {}),
        preferences=given.pop("preferences", None),
        assignments=given.pop("assignments", []),
        batch=given.pop("batch", None),
        other=given,
    )


def test_the_command_line_overrides_the_file_setting_by_setting() -> None:
    told = job(ratings={"path": "b.csv", "format": None}, folds="3", assignments=["pmf.n_factors=9"])
    assert told.ratings is not None
    assert (told.ratings.path, told.folds) == ("b.csv", 3)
    assert told.settings == {"pmf": {"n_factors": 9, "n_iterations": 4}}
    assert (told.privacy.epsilon, told.privacy.delta) == (0.5, 1e-7)


def test_other_ratings_are_not_read_and_not_charged_like_those_of_the_file() -> None:
    Path("c.yaml").write_text("source: films\nratings: {path: a.csv, delimiter: ';'}\nscale: 1:5:1\n")
    told = job(ratings={"path": "b.csv"})
    assert told.ratings is not None
    assert (told.source, told.ratings.delimiter) == ("b.csv", None)
    assert job(ratings={"path": "b.csv"}, source="books").source == "books"
    same = job(ratings={"path": None, "delimiter": "|"})
    assert same.ratings is not None
    assert (same.source, same.ratings.path, same.ratings.delimiter) == ("films", "a.csv", "|")


def test_a_table_on_the_command_line_replaces_the_files_query_and_the_other_way_round() -> None:
    Path("x.db").touch()
    Path("c.yaml").write_text("ratings: {path: 'sqlite:///x.db', query: select 1}\nscale: 1:5:1\n")
    told = job(ratings={"table": "films", "query": None})
    assert told.ratings is not None
    assert (told.ratings.table, told.ratings.query, told.source) == ("films", None, "films")
    Path("c.yaml").write_text("ratings: {path: 'sqlite:///x.db', table: films}\nscale: 1:5:1\n")
    told = job(ratings={"query": "select 2"})
    assert told.ratings is not None
    assert (told.ratings.table, told.ratings.query, told.source) == (None, "select 2", "x.db")


def test_a_policy_on_the_command_line_replaces_the_files_epsilon_and_the_other_way_round() -> None:
    told = job(privacy={"policy": "policy.yaml", "epsilon": None})
    assert told.privacy.epsilon is None
    assert told.privacy.policy is not None
    assert told.privacy.policy.conservative == 0.3
    Path("c.yaml").write_text("privacy: {policy: default}\n")
    assert job(privacy={"epsilon": "2"}).privacy.policy is None


def test_columns_and_delimiters_are_read() -> None:
    told = job(None, ratings={"path": "a.csv", "columns": "user=u,item=i", "delimiter": "tab"}, scale="1:5:1")
    assert told.ratings is not None
    assert (told.ratings.columns, told.ratings.delimiter) == ({"user": "u", "item": "i"}, "\t")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ratings": {"path": "a.csv", "columns": "user"}}, "NAME=VALUE pairs"),
        ({"ratings": {"path": "a.csv", "columns": "who=x"}}, "columns"),
        ({"ratings": {"path": "a.csv", "delimiter": ";;"}}, "delimiter"),
        ({"ratings": {"format": "xml", "path": "a.csv"}}, "format"),
        ({"privacy": {"epsilon": "1", "policy": "default"}}, "either one epsilon"),
        ({"privacy": {"policy": "nope.yaml"}}, "nope.yaml does not exist"),
        ({"assignments": ["pmf"]}, "RECOMMENDER.SETTING=VALUE"),
        ({"assignments": ["pmf.n_factors=["]}, "no number, word or list"),
    ],
)
def test_malformed_options_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refusal:
        job(**given)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("given", [{"ratings": {"delimiter": ";"}}, {"preferences": {"default": "1"}}])
def test_how_to_read_a_table_without_where_it_is_says_what_is_missing(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="say --ratings or --preferences with a path"):
        job(None, **given)


@pytest.mark.parametrize("content", ["privacy: 3\n", "settings: [a]\n", "settings: {pmf: 3}\n", "folds: {a: b}\n"])
def test_a_file_with_the_wrong_shape_is_one_sentence(content: str) -> None:
    Path("c.yaml").write_text(content)
    with pytest.raises(SpecError):
        job(ratings={"path": "a.csv"}, privacy={"epsilon": "1"}, assignments=["pmf.n_factors=9"])


def test_preferences_on_the_command_line_replace_the_files_promise_and_keep_what_is_declared() -> None:
    given: dict[str, Any] = {"path": "b.csv", "default": "0.2", "cap": None, "levels": "low=0.1,high=1"}
    told = job(preferences=given).privacy
    assert told.epsilon is None
    assert told.preferences is not None
    assert (told.preferences.default, told.preferences.cap) == (0.2, None)
    assert told.preferences.levels == {"low": 0.1, "high": 1}
    Path("c.yaml").write_text("privacy: {preferences: {path: a.csv, delimiter: ';', default: 0.2, cap: 1}}\n")
    told = job(preferences={"path": "b.csv", "cap": "0.7"}).privacy
    assert told.preferences is not None
    assert told.preferences.model_dump(exclude_none=True) == {
        "path": "b.csv", "default": 0.2, "cap": 0.7, "levels": {}, "format": "auto", "columns": {},
    }  # fmt: skip
    assert job(privacy={"epsilon": "2"}).privacy.preferences is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "b.csv"}, "who are not in the table, with --default-epsilon"),
        ({"path": "b.csv", "default": "0.2"}, "declare a cap"),
        ({"path": "b.csv", "default": "2", "cap": "1"}, "exceeds the cap"),
        ({"path": "b.csv", "default": "0.2", "levels": "low"}, "--levels takes NAME=VALUE"),
        ({"path": "nope.csv", "default": "0.2", "cap": "1"}, "the preferences file nope.csv does not exist"),
        ({"path": "sqlite:///a.csv", "default": "0.2", "cap": "1"}, "a table or a query"),
        ({"path": "postgresql://u:secret@h/d", "table": "t", "default": "0.2", "cap": "1"}, "holds a password"),
        ({"default": "0.2"}, "path"),
    ],
)
def test_preferences_without_sense_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refusal:
        job(None, preferences=given)
    assert sentence in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_price_of_metrics_on_the_command_line_leaves_the_files_bound_on_a_user() -> None:
    Path("c.yaml").write_text("privacy: {metrics: {epsilon: 0.2, ratings_per_user: 3}}\n")
    for given, epsilon, m in ((None, 0.2, 3), ("0.1", 0.1, 3)):
        told = job(privacy={"metrics": given}).privacy.metrics
        assert told is not None
        assert (told.epsilon, told.ratings_per_user) == (epsilon, m)
    Path("c.yaml").write_text("privacy: {metrics: 0.2}\n")
    told = job(privacy={"metrics": "0.3"}).privacy.metrics
    assert told is not None
    assert (told.epsilon, told.ratings_per_user) == (0.3, 5)
    with pytest.raises(SpecError, match=r"metrics.epsilon: this should be a valid number"):
        job(privacy={"metrics": "much"})


@pytest.mark.parametrize(
    ("written", "flags", "corrections"),
    [
        ("", {}, None),
        ("batch: false\n", {}, None),
        ("batch: true\n", {}, False),
        ("batch: {corrections: true}\n", {}, True),
        ("", {"batch": True}, False),
        ("batch: false\n", {"batch": True, "corrections": True}, True),
        ("batch: true\n", {"corrections": True}, True),
        ("batch: {corrections: true}\n", {"batch": True, "corrections": False}, True),
    ],
)
def test_a_batch_is_asked_for_in_the_file_or_on_the_command_line(
    written: str, flags: dict[str, bool], corrections: bool | None
) -> None:
    Path("c.yaml").write_text(f"scale: 1:5:1\nratings: a.csv\n{written}")
    told = job(batch=flags)
    assert (told.batch.corrections if told.batch else None) == corrections
    if told.batch:
        assert told.recommenders == ("pdp-histogram",)  # what can be a batch, unless somebody names others


@pytest.mark.parametrize(
    ("written", "flags", "reason"),
    [
        ("", {"corrections": True}, "give --batch too"),
        ("batch: false\n", {"corrections": True}, "give --batch too"),
        ("batch: nightly\n", {}, "batch"),
        ("batch: {by: timestamp}\n", {}, "no setting batch.by"),
        ("batch: true\nprivacy: {unit: user}\n", {}, "Ask for unit rating"),
        ("batch: true\nrecommenders: [pmf]\n", {}, "pmf is fitted to all ratings at once"),
        ("batch: true\nrecommenders: [pdp-histogram]\nsettings: {pdp-histogram: {threshold: 2}}\n", {}, "Lower the"),
    ],
)
def test_what_cannot_be_a_batch_is_refused_before_anything_is_read(
    written: str, flags: dict[str, bool], reason: str
) -> None:
    Path("c.yaml").write_text(f"scale: 1:5:1\nratings: a.csv\n{written}")
    with pytest.raises(SpecError, match=reason):
        job(batch=flags)
