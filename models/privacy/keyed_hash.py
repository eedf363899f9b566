"""Numbers that look random and depend on a key and on who rates what, never on the ratings.

SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012) of the pair (user, item). Used to draw privacy
specifications and to deal ratings into folds: the same pair gets the same number on every machine,
in every subset of the ratings, whether or not the pair was rated.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numba
import numpy as np
from numpy.typing import NDArray

from models.kernels import kernel
from models.ratings import Doubles, Ints

Words = NDArray[np.uint64]


def pair_uniforms(
    key: str, user_labels: Sequence[str], item_labels: Sequence[str], users: Ints, items: Ints
) -> Doubles:
    """One number in [0, 1) per pair, uniform and independent over pairs for whoever lacks the key.

    Args:
      key: any text; another key, other numbers.
      users, items: shape (n,), rows into the labels.
    Returns:
      Shape (n,), multiples of 2^-53.
    """
    k0, k1 = np.frombuffer(blake2b(key.encode(), digest_size=16).digest(), dtype="<u8")
    out = np.empty(len(users), np.uint64)
    _siphash_pairs(k0, k1, _words(user_labels), _words(item_labels), users, items, out)
    return (out >> np.uint64(11)).astype(np.float64) * 2.0**-53


def label_uniforms(key: str, labels: Sequence[str]) -> Doubles:
    """One number in [0, 1) per label; shape (len(labels),)."""
    rows = np.arange(len(labels), dtype=np.int32)
    return pair_uniforms(key, labels, [""], rows, np.zeros_like(rows))


def label_hashes(key: bytes, kind: str, labels: Sequence[str]) -> Words:
    """A pseudonym of 64 bits per label: the same in every run, and telling nothing to whoever lacks the key.

    Args:
      key: at most 64 bytes.
      kind: what the labels are of; the same label of two kinds has two pseudonyms.
    """
    digests = (blake2b(label.encode(), digest_size=8, key=key, person=kind.encode()).digest() for label in labels)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _words(labels: Sequence[str]) -> Words:
    digests = b"".join(blake2b(label.encode(), digest_size=8).digest() for label in labels)
    return np.frombuffer(digests, dtype="<u8")


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rotate(x: np.uint64, by: int) -> np.uint64:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _round(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a += b
    b = _rotate(b, 13) ^ a
    a = _rotate(a, 32)
    c += d
    d = _rotate(d, 16) ^ c
    a += d
    d = _rotate(d, 21) ^ a
    c += b
    b = _rotate(b, 17) ^ c
    c = _rotate(c, 32)
    return a, b, c, d


@kernel
def _siphash_pairs(
    k0: np.uint64, k1: np.uint64, user_words: Words, item_words: Words, users: Ints, items: Ints, out: Words
) -> None:
    length = np.uint64(16) << np.uint64(56)  # the last block of a 16-byte message: its length and nothing else
    for n in range(len(users)):
        a = k0 ^ np.uint64(0x736F6D6570736575)
        b = k1 ^ np.uint64(0x646F72616E646F6D)
        c = k0 ^ np.uint64(0x6C7967656E657261)
        d = k1 ^ np.uint64(0x7465646279746573)
        for word in (user_words[users[n]], item_words[items[n]], length):
            d ^= word
            a, b, c, d = _round(a, b, c, d)
            a, b, c, d = _round(a, b, c, d)
            a ^= word
        c ^= np.uint64(0xFF)
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        out[n] = a ^ b ^ c ^ d
