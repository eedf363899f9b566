"""Noise decided digit by digit in exact arithmetic: slow, for what models/privacy/exact_sampler.py leaves undecided.

It is the same sampler and uses the same bytes in the same order, so that the two can be compared draw by draw.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partial
from math import floor, frexp
from typing import Literal

import numpy as np

Law = Literal["laplace", "gaussian"]

KEEPING_BYTES = 4
"""Of the uniform number that decides whether a proposal for Gaussian noise is kept, drawn at a time."""


class Bytes:
    """Random bytes, in the order in which they are used."""

    def __init__(self, fresh: Callable[[int], bytes], n_bytes: int) -> None:
        self._fresh = fresh
        self.array = np.frombuffer(fresh(n_bytes), np.uint8)
        self.position = 0

    def take(self, n_bytes: int) -> int:
        """The next bytes as a number, the first the most significant; beyond the end of the array, fresh ones."""
        there = self.array[self.position : self.position + n_bytes].tobytes()
        self.position += len(there)
        return int.from_bytes(there + self._fresh(n_bytes - len(there)))


def proposal(law: Law, scale: float, stream: Bytes) -> int | None:
    """Noise by the next bytes of the stream, or None where they are to be thrown away and others drawn.

    What is returned, given that it is not None, has P(k) proportional to exp(-|k| / scale), or to
    exp(-k^2 / (2 scale^2)).
    """
    exact = Fraction(scale)
    n_low = low_digits(scale)
    magnitude = 0
    for place in range(n_low):
        magnitude |= happens(stream, partial(digit_is_one, 2**place / exact)) << place
    while happens(stream, partial(exponential, 2**n_low / exact)):
        magnitude += 2**n_low
    negative = stream.take(1) & 1
    if negative and magnitude == 0:
        return None
    if law == "gaussian":
        keeping = partial(exponential, (magnitude / exact - 1) ** 2 / 2)
        if not happens(stream, keeping, KEEPING_BYTES):
            return None
    return -magnitude if negative else magnitude


def low_digits(scale: float) -> int:
    """How many binary digits of a geometric magnitude are drawn one by one; 2^n is twice to four times the scale."""
    return max(0, frexp(scale)[1] + 1)


def happens(stream: Bytes, probability: Callable[[int], int], n_bytes: int = 1) -> bool:
    """True with probability p, given as the function floor(p 2^bits) of bits: as many as it takes to decide U < p."""
    drawn = bits = 0
    while True:
        drawn = drawn << 8 * n_bytes | stream.take(n_bytes)
        bits += 8 * n_bytes
        known = probability(bits)
        if drawn != known:
            return drawn < known


@lru_cache(maxsize=4096)
def digit_is_one(x: Fraction, bits: int) -> int:
    """floor(2^bits / (1 + exp(x))): of a digit that stands for x scales, in a geometric magnitude; x positive."""
    return _certified_floor(lambda z: z / (1 + z), x, bits)


def exponential(x: Fraction, bits: int) -> int:
    """floor(2^bits exp(-x)); x not negative."""
    return _certified_floor(lambda z: z, x, bits) if x else 1 << bits


def _certified_floor(of: Callable[[Fraction], Fraction], x: Fraction, bits: int) -> int:
    """floor(2^bits of(exp(-x))), for x positive and `of` increasing, rational, and at most the identity.

    It is the floor of both ends of an interval that holds the value. Such an interval is found, because exp(-x) is
    transcendental (Lindemann), so that the value is no multiple of 2^-bits.
    """
    if x > bits:  # exp(-x) is below 2^-bits
        return 0
    n_digits = bits // 3 + 20
    while True:
        least, most = (of(z) * (1 << bits) for z in _exponential_between(x, n_digits))
        if floor(least) == floor(most):
            return floor(least)
        n_digits *= 2


def _exponential_between(x: Fraction, n_digits: int) -> tuple[Fraction, Fraction]:
    """Below and above exp(-x): the quotient is rounded outwards, and the exponential, rounded to nearest, moved on."""
    with localcontext(Context(prec=n_digits, Emin=MIN_EMIN, Emax=MAX_EMAX)) as context:
        context.rounding = ROUND_CEILING
        most = Decimal(x.numerator) / Decimal(x.denominator)
        context.rounding = ROUND_FLOOR
        least = Decimal(x.numerator) / Decimal(x.denominator)
        return Fraction((-most).exp().next_minus()), Fraction((-least).exp().next_plus())
