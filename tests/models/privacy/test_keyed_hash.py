from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from models.privacy.keyed_hash import _siphash_pairs, label_uniforms, pair_uniforms


def siphash(key: bytes, message: bytes) -> int:
    k0, k1 = np.frombuffer(key, "<u8")
    words = np.frombuffer(message, "<u8")
    out = np.empty(1, np.uint64)
    zero = np.zeros(1, np.int32)
    _siphash_pairs(k0, k1, words[:1], words[1:], zero, zero, out)
    return int(out[0])


def test_the_reference_vector_of_siphash_2_4() -> None:
    """Key 00..0f, message 00..0f: vector 16 of the reference implementation's table."""
    assert siphash(bytes(range(16)), bytes(range(16))).to_bytes(8, "little").hex() == "db9bc2577fcc2a3f"


def pairs(key: str) -> np.ndarray:
    users, items = np.divmod(np.arange(40_000, dtype=np.int32), 200)
    labels = [str(label) for label in range(200)]
    return pair_uniforms(key, labels, labels, users.astype(np.int32), items.astype(np.int32))


def test_pairs_are_uniform_and_keys_unrelated() -> None:
    one, other = pairs("a"), pairs("b")
    assert kstest(one, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    grid = one.reshape(200, 200)
    assert abs(np.corrcoef(grid[0], grid[1])[0, 1]) < 0.3
    assert np.std(grid.mean(axis=0)) == pytest.approx(np.sqrt(1 / 12 / 200), rel=0.25)
    assert not np.allclose(grid, grid.T)


def test_a_pair_keeps_its_number_in_every_subset() -> None:
    labels = ["x", "y", "z"]
    rows = np.array([0, 2], np.int32)
    whole = pair_uniforms("k", labels, labels, np.array([0, 1, 2], np.int32), np.array([0, 1, 2], np.int32))
    assert (pair_uniforms("k", labels, labels, rows, rows) == whole[[0, 2]]).all()
    assert (label_uniforms("k", ["z", "x"]) == label_uniforms("k", labels)[[2, 0]]).all()
