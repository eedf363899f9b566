"""Discrete Laplace and discrete Gaussian noise for millions of values: exact, as OpenDP's is, and many times as fast.

Exact means: from independent unbiased bits, every integer has exactly the probability that the law gives it, for the
scale as the float it is. docs/guarantees.md, "The samplers", has the argument in full. In short:

- Every decision is U < p, for a uniform real number U of which as many bytes are drawn as it takes to tell. Mostly
  that is one: it differs from the first digit of p to base 256 in 255 of 256 cases.
- The binary digits of a geometric magnitude m, P(m) proportional to exp(-m / s), are independent: that of 2^i is one
  with probability 1 / (1 + exp(2^i / s)). What n of them leave, m // 2^n, is geometric again, with exp(-2^n / s) for
  one more. A random sign makes the discrete Laplace law, if minus zero is thrown away and all drawn again.
- A discrete Laplace k of scale s, kept with probability exp(-(|k| / s - 1)^2 / 2) and else drawn again, is discrete
  Gaussian of scale s (Canonne, Kamath and Steinke, NeurIPS 2020, Algorithm 3, with t = s).
- The kernel decides what the first 8 digits of a probability, or 4 bytes and a floating-point exponential with a bound
  on its error, can decide. Where they cannot it stops, and models/privacy/certified.py makes that draw from
  the same bytes with as many digits as it takes. Nothing is rounded off.

The bytes are the operating system's. Every call asks for its own and keeps none, so that there is no state that a
forked process or another thread could share.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from models.kernels import exact_kernel
from models.privacy.certified import KEEPING_BYTES, Bytes, Law, digit_is_one, exponential, low_digits, proposal

Steps = NDArray[np.int64]
Digits = NDArray[np.uint8]

WIDEST = 2**62
"""Where a noisy value is cut: beyond every declared bound, and within 64 bits."""

CHUNK = 2**20
"""Random bytes asked for at once, at most."""

STORED = 8
"""Digits to base 256 of every probability that the kernel knows."""

MOST_HIGH = 16
"""How often the kernel adds 2^n to a magnitude before it leaves the draw to exact arithmetic."""

SWIFT = 2.0**56
"""Scales below it are the kernel's: with MOST_HIGH, every magnitude that it draws is then within 63 bits."""

DOUBT = 2.0**-40
"""Bound on the error of a keeping probability in floating point. Rounding makes less than 2^-48 of it; all the rest is
allowed to the exponential function, of which mathematical libraries promise 2^-52."""

NO, YES, UNDECIDED = 0, 1, 2


def add_noise(values: Steps, *, scale: float, law: Law, fresh: Callable[[int], bytes] = secrets.token_bytes) -> Steps:
    """Independent noise on every value; the noisy value is cut at WIDEST, which is post-processing.

    Args:
      values: any int64, any shape.
      scale: in the same units; positive and finite.
      law: "laplace" is P(k) proportional to exp(-|k| / scale), "gaussian" to exp(-k^2 / (2 scale^2)).
      fresh: gives so many unpredictable bytes. Another one is for tests.
    """
    noisy, scale = values.astype(np.int64, casting="safe").ravel(), float(scale)
    digits = _stored_digits(scale)
    done = 0
    while done < len(noisy):
        stream = Bytes(fresh, _enough(len(noisy) - done, digits))
        undecided = True
        while undecided:
            done, stream.position, undecided = _fill(
                noisy, done, stream.array, stream.position, digits, scale, law == "gaussian"
            )
            noise = proposal(law, scale, stream) if undecided else None
            if noise is not None:
                noisy[done] = max(-WIDEST, min(int(noisy[done]) + noise, WIDEST))
                done += 1
    return noisy.reshape(values.shape)


@lru_cache(maxsize=64)
def _stored_digits(scale: float) -> Digits:
    """Of every low digit's probability to be one, and then of one more 2^n; shape (n + 1, STORED).

    Shape (0, STORED) for a scale beyond the kernel, which then decides nothing.
    """
    if scale >= SWIFT:
        return np.empty((0, STORED), np.uint8)
    n_low = low_digits(scale)
    floors = [digit_is_one(2**place / Fraction(scale), 8 * STORED) for place in range(n_low)]
    floors.append(exponential(2**n_low / Fraction(scale), 8 * STORED))
    return np.frombuffer(b"".join(known.to_bytes(STORED) for known in floors), np.uint8).reshape(-1, STORED)


def _enough(n_values: int, digits: Digits) -> int:
    """Random bytes to ask for: likely enough for so many values, but for Gaussian ones, which are often drawn twice."""
    return min(CHUNK, n_values * (len(digits) + 3) + _most_bytes(digits))


@exact_kernel
def _most_bytes(digits: Digits) -> int:
    """What a draw can take, however many digits tie."""
    return (len(digits) + MOST_HIGH) * STORED + 1 + KEEPING_BYTES


@exact_kernel
def _fill(
    noisy: Steps, done: int, stream: Digits, position: int, digits: Digits, scale: float, gaussian: bool
) -> tuple[int, int, bool]:
    """Add noise to `noisy` from `done` on: how far it came, in it and in the stream, and whether a draw is undecided.

    It stops where the stream has less than a draw can take. That depends on bytes that have been used and on none
    of those left, which may therefore be thrown away: what is drawn instead has the same law.
    """
    while done < len(noisy) and position + _most_bytes(digits) <= len(stream):
        if len(digits) == 0:
            return done, position, True
        began = position
        magnitude, position = _magnitude(stream, position, digits)
        if magnitude < 0:
            return done, began, True
        negative = stream[position] & 1
        position += 1
        if negative and magnitude == 0:
            continue
        if gaussian:
            kept = _is_kept(stream, position, magnitude, scale)
            position += KEEPING_BYTES
            if kept == UNDECIDED:
                return done, began, True
            if kept == NO:
                continue
        noisy[done] = _cut_sum(noisy[done], -magnitude if negative else magnitude)
        done += 1
    return done, position, False


@exact_kernel
def _magnitude(stream: Digits, position: int, digits: Digits) -> tuple[int, int]:
    """A geometric variable, or -1 where the stored digits do not decide it; and where the stream goes on."""
    n_low = len(digits) - 1
    magnitude = 0
    for place in range(n_low):
        one, position = _happens(stream, position, digits, place)
        if one == UNDECIDED:
            return -1, position
        magnitude |= one << place
    for high in range(MOST_HIGH + 1):
        more, position = _happens(stream, position, digits, n_low)
        if more == UNDECIDED:
            return -1, position
        if more == NO:
            return magnitude + (high << n_low), position
    return -1, position


@exact_kernel
def _happens(stream: Digits, position: int, digits: Digits, row: int) -> tuple[int, int]:
    """Whether U < p, by the first byte of U that is not p's."""
    for place in range(STORED):
        drawn, known = stream[position + place], digits[row, place]
        if drawn != known:
            return YES if drawn < known else NO, position + place + 1
    return UNDECIDED, position


@exact_kernel
def _is_kept(stream: Digits, position: int, magnitude: int, scale: float) -> int:
    """Whether U < exp(-(magnitude / scale - 1)^2 / 2), where 4 bytes of U leave no doubt."""
    probability = _keeping_probability(magnitude, scale)
    drawn = 0
    for place in range(KEEPING_BYTES):
        drawn = drawn << 8 | int(stream[position + place])
    if (drawn + 1) * 256.0**-KEEPING_BYTES <= probability - DOUBT:
        return YES
    if drawn * 256.0**-KEEPING_BYTES >= probability + DOUBT:
        return NO
    return UNDECIDED


@exact_kernel
def _keeping_probability(magnitude: int, scale: float) -> float:
    """In floating point, off by less than DOUBT."""
    away = (magnitude - scale) / scale
    return exp(-0.5 * away * away)


@exact_kernel
def _cut_sum(value: int, noise: int) -> int:
    """The noisy value, cut at WIDEST, without ever leaving 64 bits."""
    if noise > 0 and value > WIDEST - noise:
        return WIDEST
    if noise < 0 and value < -WIDEST - noise:
        return -WIDEST
    return max(-WIDEST, min(value + noise, WIDEST))
