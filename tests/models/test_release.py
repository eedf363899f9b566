from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.release import ARRAYS_FILE, FORMAT, RELEASE_FILE, ItemFactors, Release, ReleaseError

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
