from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.release import ARRAYS_FILE, FORMAT, RELEASE_FILE, ItemFactors, Release, ReleaseError, _largest

RNG = np.random.default_rng(0)
FACTORS = ItemFactors(
    RNG.normal(size=(6, 2)).astype(np.float32), RNG.uniform(2, 4, 6).astype(np.float32), np.array([1.0, 2.0]), 0.1
)
RELEASE = Release(FACTORS, tuple("abcdef"), tuple("ABCDEF"), 1.0, 5.0, 1.0, {"recommender": "made-up"})


def by_hand(factors: ItemFactors, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    X = factors.V[items].astype(float)
    prior = np.diag(factors.precision + factors.precision_per_rating * len(items))
    return np.linalg.solve(X.T @ X + prior, X.T @ (values - factors.offset[items]))


@pytest.mark.parametrize("block", [1, 7, 40, 1 << 22])
def test_fold_in_is_a_ridge_regression_for_every_user_however_it_is_batched(block: int) -> None:
    counts = [0, 3, 1, 6, 0, 2, 6]
    start = np.concatenate([[0], np.cumsum(counts)])
    items = np.concatenate([RNG.permutation(6)[:count] for count in counts])
    values = RNG.uniform(1, 5, len(items))
    U = FACTORS.fold_in(start, items, values, block=block)
    for user, count in enumerate(counts):
        own = slice(start[user], start[user + 1])
        expected = by_hand(FACTORS, items[own], values[own]) if count else np.zeros(2)
        assert np.allclose(U[user], expected, atol=1e-5)


def test_a_user_without_ratings_is_predicted_the_offset() -> None:
    assert np.allclose(RELEASE.predict({}, list("abc")), FACTORS.offset[:3])


def test_recommendations_are_the_best_of_what_was_not_rated() -> None:
    own = {"a": 5.0, "b": 1.0}
    best = RELEASE.recommend(own, n=10)
    assert {item for item, _, _ in best} == set("cdef")
    predicted = dict(zip("cdef", RELEASE.predict(own, list("cdef")), strict=True))
    ratings = [rating for _, _, rating in best]
    assert ratings == sorted(ratings, reverse=True)
    assert all(rating == pytest.approx(predicted[item]) for item, _, rating in best)
    assert [title for _, title, _ in best] == [item.upper() for item, _, _ in best]
    assert RELEASE.recommend(own, n=1) == best[:1]
    assert RELEASE.recommend(own, n=0) == []


def test_own_ratings_of_unknown_items_are_ignored() -> None:
    assert np.allclose(RELEASE.predict({"a": 5.0, "zzz": 1.0}, ["b"]), RELEASE.predict({"a": 5.0}, ["b"]))


@pytest.mark.parametrize("rating", [0.0, 5.5, float("nan"), float("inf"), -1e300])
def test_a_rating_off_the_scale_is_refused_without_quoting_it(rating: float) -> None:
    with pytest.raises(ReleaseError, match="from 1 to 5") as refusal:
        RELEASE.predict({"a": rating}, ["b"])
    assert str(rating) not in str(refusal.value)


def test_an_unknown_item_cannot_be_predicted() -> None:
    with pytest.raises(ReleaseError, match="1 of the items"):
        RELEASE.predict({}, ["a", "zzz"])
    with pytest.raises(ReleaseError, match="at least 0"):
        RELEASE.recommend({}, n=-1)


def test_saving_and_loading_changes_nothing(tmp_path: Path) -> None:
    RELEASE.save(tmp_path)
    loaded = Release.load(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([ARRAYS_FILE, RELEASE_FILE])
    assert (loaded.items, loaded.titles, loaded.about) == (RELEASE.items, RELEASE.titles, RELEASE.about)
    assert np.array_equal(loaded.predict({"a": 5.0}, list("abc")), RELEASE.predict({"a": 5.0}, list("abc")))


def test_statistics_come_back_as_they_were_saved(tmp_path: Path) -> None:
    histogram = np.asfortranarray(RNG.integers(-(2**40), 2**40, (6, 5)))
    replace(RELEASE, statistics={"histogram": histogram}).save(tmp_path)
    loaded = Release.load(tmp_path).statistics["histogram"]
    assert np.array_equal(loaded, histogram)
    assert loaded.dtype == np.int64


def test_statistics_of_other_items_are_refused(tmp_path: Path) -> None:
    replace(RELEASE, statistics={"histogram": np.zeros((5, 5))}).save(tmp_path)
    with pytest.raises(ReleaseError, match="Fetch the two files again"):
        Release.load(tmp_path)


@pytest.mark.parametrize("file", [ARRAYS_FILE, RELEASE_FILE])
@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_a_damaged_release_is_refused_in_one_sentence(tmp_path: Path, file: str, damage: str) -> None:
    RELEASE.save(tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"\x00garbage")
    with pytest.raises(ReleaseError, match="Fetch the two files again"):
        Release.load(tmp_path)


def is_refused_or_answers(folder: Path) -> bool:
    """Whether loading is refused in a sentence; a release that does load must answer. Anything else fails the test."""
    try:
        loaded = Release.load(folder)
    except ReleaseError as error:
        return "Fetch the two files again" in str(error) or "Upgrade Jali" in str(error)
    best = loaded.recommend({"a": loaded.low, "zzz": loaded.high}, n=3)
    assert all(loaded.low <= rating <= loaded.high for _, _, rating in best)
    return False


def test_a_changed_bit_of_the_arrays_is_always_found(tmp_path: Path) -> None:
    replace(RELEASE, statistics={"histogram": np.arange(12).reshape(6, 2)}).save(tmp_path)
    path = tmp_path / ARRAYS_FILE
    whole = path.read_bytes()
    for at in RNG.integers(0, 8 * len(whole), 200):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << (at % 8)
        path.write_bytes(changed)
        assert is_refused_or_answers(tmp_path)


def without_digest(folder: Path) -> dict[str, object]:
    """The first releases said no digest of their arrays; what is wrong with these must be found without it."""
    document = json.loads((folder / RELEASE_FILE).read_text())
    del document["arrays_sha256"]
    (folder / RELEASE_FILE).write_text(json.dumps(document))
    return document


@pytest.mark.parametrize("file", [ARRAYS_FILE, RELEASE_FILE])
def test_no_changed_byte_ends_in_anything_but_a_sentence_or_a_release_that_answers(tmp_path: Path, file: str) -> None:
    RELEASE.save(tmp_path)
    without_digest(tmp_path)
    whole = (tmp_path / file).read_bytes()
    refused = 0
    for at in RNG.integers(0, len(whole), 400):
        changed = bytearray(whole)
        changed[at] = RNG.integers(256)
        (tmp_path / file).write_bytes(changed)
        refused += is_refused_or_answers(tmp_path)
    assert refused > 40


SPOILED_ARRAYS = {
    "V with NaN": {"V": np.full((6, 2), np.nan, np.float32)},
    "V with infinity": {"V": np.full((6, 2), np.inf, np.float32)},
    "V beyond all measure": {"V": np.full((6, 2), 1e30, np.float32)},
    "V of doubles": {"V": np.ones((6, 2))},
    "V of whole numbers": {"V": np.ones((6, 2), np.int32)},
    "V of one dimension": {"V": np.ones(6, np.float32)},
    "V of other items": {"V": np.ones((5, 2), np.float32)},
    "V with more columns than precisions": {"V": np.ones((6, 3), np.float32)},
    "offset with NaN": {"offset": np.full(6, np.nan, np.float32)},
    "offset of other items": {"offset": np.ones(7, np.float32)},
    "offset of two dimensions": {"offset": np.ones((6, 1), np.float32)},
}


@pytest.mark.parametrize("spoiled", SPOILED_ARRAYS)
def test_arrays_that_nothing_can_be_predicted_with_are_refused(tmp_path: Path, spoiled: str) -> None:
    RELEASE.save(tmp_path)
    without_digest(tmp_path)
    save_file({"V": FACTORS.V, "offset": FACTORS.offset} | SPOILED_ARRAYS[spoiled], tmp_path / ARRAYS_FILE)
    assert is_refused_or_answers(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"items": list("abcdea")},
        {"items": "abcdef"},
        {"items": [1, 2, 3, 4, 5, 6]},
        {"items": list("abcde")},
        {"items": [*"abcde", "\ud800"]},
        {"titles": [None] * 6},
        {"titles": list("ABCDEFG")},
        {"scale": {"low": 5, "high": 1, "step": 1}},
        {"scale": {"low": 1, "high": 5, "step": 0}},
        {"scale": {"low": float("nan"), "high": 5, "step": 1}},
        {"scale": {"low": "1", "high": 5, "step": 1}},
        {"scale": {"low": True, "high": 5, "step": 1}},
        {"scale": {"low": 1, "high": 10**400, "step": 1}},
        {"scale": [1, 5, 1]},
        {"fold_in": {"precision": [1.0], "precision_per_rating": 0}},
        {"fold_in": {"precision": [1.0, float("nan")], "precision_per_rating": 0}},
        {"fold_in": {"precision": [1.0, -2.0], "precision_per_rating": 3}},
        {"fold_in": {"precision": [1.0, 0.0], "precision_per_rating": 0}},
        {"fold_in": {"precision": ["1", "2"], "precision_per_rating": 0}},
        {"fold_in": {"precision": [1.0, 2.0], "precision_per_rating": "0"}},
        {"fold_in": {"precision": [1.0, 2.0], "precision_per_rating": -1}},
        {"fold_in": None},
        {"about": "made-up"},
        {"format": None},
        {"format": "1"},
        {"arrays_sha256": "0" * 64},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_a_document_that_contradicts_itself_or_the_arrays_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    RELEASE.save(tmp_path)
    document = json.loads((tmp_path / RELEASE_FILE).read_text())
    (tmp_path / RELEASE_FILE).write_text(json.dumps(document | change))
    assert is_refused_or_answers(tmp_path)


@pytest.mark.parametrize("text", ["[]", "null", "1", "[" * 100_000, '{"format": 1}', '{"format": ' + "9" * 5000 + "}"])
def test_another_document_is_refused(tmp_path: Path, text: str) -> None:
    RELEASE.save(tmp_path)
    (tmp_path / RELEASE_FILE).write_text(text)
    assert is_refused_or_answers(tmp_path)


def test_files_of_two_releases_are_not_taken_for_one(tmp_path: Path) -> None:
    RELEASE.save(tmp_path)
    arrays = (tmp_path / ARRAYS_FILE).read_bytes()
    replace(RELEASE, factors=replace(FACTORS, V=FACTORS.V + 1)).save(tmp_path)
    (tmp_path / ARRAYS_FILE).write_bytes(arrays)
    assert is_refused_or_answers(tmp_path)


def test_the_first_releases_which_say_no_digest_are_read(tmp_path: Path) -> None:
    RELEASE.save(tmp_path)
    without_digest(tmp_path)
    assert not is_refused_or_answers(tmp_path)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 99, 100, 101, 1000])
def test_the_best_n_are_those_of_a_stable_sort_however_many_are_equal(n: int) -> None:
    values = RNG.integers(0, 12, 100).astype(float)
    values[RNG.integers(0, 100, 30)] = -np.inf
    assert np.array_equal(_largest(values, n), np.argsort(-values, kind="stable")[:n])


def test_an_answer_says_what_is_not_in_the_catalogue() -> None:
    rated = [{"item": "a", "rating": 5}, {"item": "zzz", "rating": 1}, {"item": 7, "rating": np.float32(2)}]
    assert RELEASE.answer(rated, n=2) == (RELEASE.recommend({"a": 5.0}, 2), 2, [])
    answer = RELEASE.answer(rated, items=["b", "nowhere", 5])
    assert (answer.unknown, answer.ignored) == (["nowhere", "5"], 2)
    assert answer.items == [("b", "B", RELEASE.predict({"a": 5.0}, ["b"])[0])]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"ratings": None}, "ratings is a list"),
        ({"ratings": "abc"}, "ratings is a list"),
        ({"ratings": {"a": 5}}, "ratings is a list"),
        ({"ratings": [("a", 5)]}, "ratings is a list"),
        ({"ratings": [{"item": "a", "rating": "77.25"}]}, "a number"),
        ({"ratings": [{"item": "a", "rating": True}]}, "a number"),
        ({"ratings": [{"item": "a", "rating": float("nan")}]}, "a number"),
        ({"ratings": [{"item": "a", "rating": 10**400}]}, "a number"),
        ({"ratings": [{"item": "a", "rating": 77.25}]}, "from 1 to 5"),
        ({"ratings": [{"item": "zzz", "rating": 77.25}]}, "from 1 to 5"),
        ({"ratings": [{"item": 1.5, "rating": 3}]}, "a text or a whole number"),
        ({"ratings": [{"rating": 3}]}, "a text or a whole number"),
        ({"ratings": [{"item": "1", "rating": 3}, {"item": 1, "rating": 4}]}, "at most once"),
        ({"ratings": [{"item": str(item), "rating": 3} for item in range(10_001)]}, "at most 10,000"),
        ({"ratings": [], "n": 1.5}, "whole number"),
        ({"ratings": [], "n": float("nan")}, "whole number"),
        ({"ratings": [], "n": "3"}, "whole number"),
        ({"ratings": [], "n": -1}, "at least 0"),
        ({"ratings": [], "n": 1001}, "at most 1,000"),
        ({"ratings": [], "items": "abc"}, "items is a list"),
        ({"ratings": [], "items": [None]}, "a text or a whole number"),
    ],
)
def test_a_request_that_cannot_be_answered_is_one_sentence(request_: dict[str, object], said: str) -> None:
    with pytest.raises(ReleaseError, match=said) as refusal:
        RELEASE.answer(**request_)
    assert "77.25" not in str(refusal.value)


def test_a_release_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    RELEASE.save(tmp_path)
    path = tmp_path / RELEASE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(ReleaseError, match="Upgrade Jali"):
        Release.load(tmp_path)


def test_the_file_alone_is_enough_to_predict(tmp_path: Path) -> None:
    """Copied somewhere else and run without the project, as it is shipped with a model."""
    source = Path(__file__).parents[2] / "models" / "release.py"
    (tmp_path / "release.py").write_bytes(source.read_bytes())
    RELEASE.save(tmp_path)
    program = "from release import *; print(Release.load(Path('.')).recommend({'a': 5}, 2)[0][0])"
    outcome = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == RELEASE.recommend({"a": 5}, 2)[0][0]


def test_ten_thousand_users_fold_in_within_bounded_memory() -> None:
    import tracemalloc

    counts = RNG.integers(0, 200, 3000)
    start = np.concatenate([[0], np.cumsum(counts)])
    items = RNG.integers(0, 6, start[-1])
    tracemalloc.start()
    began = time.perf_counter()
    FACTORS.fold_in(start, items, np.full(start[-1], 3.0), block=1 << 16)
    assert time.perf_counter() - began < 30
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
