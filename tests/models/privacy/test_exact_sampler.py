"""The exact sampler: every digit, every tie, and the law.

The bytes are numpy's with a fixed seed, so that no test fails by chance; test_noise.py tests the same laws with the
operating system's.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, dlaplace, laplace, norm, rv_continuous

from models.privacy import exact_sampler
from models.privacy.certified import Bytes, Law, digit_is_one, exponential, happens, low_digits, proposal
from models.privacy.exact_sampler import DOUBT, NO, STORED, UNDECIDED, WIDEST, YES, add_noise
from models.privacy.noise import _by_opendp

SCALES = [0.3, 1.0, 1.5, 1023.7, 2.0**10, 4.4e6, 1e15]
LAWS: list[Law] = ["laplace", "gaussian"]


def seeded(seed: int = 0) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def noise(law: Law, scale: float, n: int, seed: int = 0) -> np.ndarray:
    return add_noise(np.zeros(n, np.int64), scale=scale, law=law, fresh=seeded(seed))


def scripted(*parts: bytes) -> Callable[[int], bytes]:
    """These bytes first, whatever is asked for, and then seeded ones."""
    left = [b"".join(parts) + seeded()(4000)]
    return lambda n: left.pop() if left else seeded(1)(n)


def taylor(x: Fraction) -> tuple[Fraction, Fraction]:
    """Below and above exp(x), for x in [0, 8], without any of what models/privacy/certified.py uses."""
    below = sum((x**n / factorial(n) for n in range(60)), Fraction(0))
    return below, below + 2 * x**60 / factorial(60)


# --- the digits ---


@pytest.mark.parametrize("scale", SCALES)
def test_every_stored_digit_is_that_of_the_probability(scale: float) -> None:
    rows = exact_sampler._stored_digits(scale)
    assert len(rows) == low_digits(scale) + 1
    for place, row in enumerate(rows):
        e_low, e_high = taylor(2**place / Fraction(scale))
        one_more = place == len(rows) - 1
        least = 1 / e_high if one_more else 1 / (1 + e_high)
        most = 1 / e_low if one_more else 1 / (1 + e_low)
        known = int.from_bytes(row.tobytes())
        assert known <= least * 2**64
        assert most * 2**64 <= known + 1


@pytest.mark.parametrize("scale", SCALES)
def test_digits_that_are_independent_make_the_geometric_law(scale: float) -> None:
    """P(m) of the digits' product is exp(-m / s) times a constant: checked at numbers with all kinds of digits."""
    n = low_digits(scale)

    def log_probability(m: int) -> float:
        ones = [1 / (1 + exp(2**place / scale)) for place in range(n)]
        digits = sum(np.log(p if m >> place & 1 else 1 - p) for place, p in enumerate(ones))
        return float(digits - (m >> n) * 2**n / scale)

    for m in {1, 2, 3, 5, 2**n - 1, 2**n, 2**n + 1, 5 * 2**n + 2 ** max(n - 1, 0)}:
        assert log_probability(m) - log_probability(0) == pytest.approx(-m / scale, rel=1e-9)


def test_digits_are_found_however_many_it_takes() -> None:
    """1 / (1 + exp(x)) at a tiny x is 1/2 - x/4 + ..., so close below 1/2 that 8 bits take hundreds of digits."""
    assert digit_is_one(Fraction(1, 10**400), 8) == 127
    assert exponential(Fraction(1, 10**400), 64) == 2**64 - 1
    assert exponential(Fraction(0), 64) == 2**64
    assert exponential(Fraction(10**400), 64) == digit_is_one(Fraction(10**400), 64) == 0


# --- ties ---


def bytes_for_one_digit(scale: float, place: int, after: bytes) -> bytes:
    """Zeros below a digit, all the stored bytes of that digit, then `after`, zeros above, none more, a plus."""
    above = b"\xff" * (low_digits(scale) - place)
    return b"\xff" * place + exact_sampler._stored_digits(scale)[place].tobytes() + after + above + b"\x00"


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> list[Law]:
    """One entry for every draw that the kernel leaves to exact arithmetic."""
    seen: list[Law] = []

    def counted(law: Law, scale: float, stream: Bytes) -> int | None:
        seen.append(law)
        return proposal(law, scale, stream)

    monkeypatch.setattr(exact_sampler, "proposal", counted)
    return seen


@pytest.mark.parametrize("scale", [1.0, 1023.7, 4.4e6])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("ties", "beside", "is_one"), [(0, -1, 1), (0, 1, 0), (3, -1, 1), (3, 1, 0)])
def test_a_digit_that_ties_in_all_stored_bytes_is_decided_by_the_next(
    scale: float, place: int, ties: int, beside: int, is_one: int, undecided: list[Law]
) -> None:
    longer = digit_is_one(2**place / Fraction(scale), 8 * (STORED + ties + 1))
    assert 0 < longer % 256 < 255
    after = (longer + beside).to_bytes(STORED + ties + 1)[STORED:]
    (noisy,) = add_noise(
        np.zeros(1, np.int64), scale=scale, law="laplace", fresh=scripted(bytes_for_one_digit(scale, place, after))
    )
    assert noisy == is_one << place
    assert undecided == ["laplace"]


@pytest.mark.parametrize("ties", range(1, STORED))
@pytest.mark.parametrize(("beside", "is_one"), [(-1, 1), (1, 0)])
def test_a_digit_that_ties_in_fewer_bytes_is_the_kernels(
    ties: int, beside: int, is_one: int, undecided: list[Law]
) -> None:
    row = exact_sampler._stored_digits(1023.7)[0].tobytes()
    drawn = row[:ties] + bytes([row[ties] + beside]) + b"\xff" * low_digits(1023.7) + b"\x00"
    assert add_noise(np.zeros(1, np.int64), scale=1023.7, law="laplace", fresh=scripted(drawn)) == [is_one]
    assert not undecided


@pytest.mark.parametrize(("beside", "is_kept"), [(-1, True), (1, False)])
def test_a_proposal_that_ties_with_its_keeping_probability_is_decided_by_the_next_bytes(
    beside: int, is_kept: bool, undecided: list[Law]
) -> None:
    scale, magnitude = 1023.7, 1
    probability = exponential((magnitude / Fraction(scale) - 1) ** 2 / 2, 64)
    one = b"\x00" + b"\xff" * low_digits(scale) + b"\x00"
    bytes_drawn = one + (probability + beside).to_bytes(8) + one.replace(b"\x00", b"\xff", 1)
    (noisy,) = add_noise(np.zeros(1, np.int64), scale=scale, law="gaussian", fresh=scripted(bytes_drawn))
    assert (noisy == magnitude) == is_kept
    assert undecided == ["gaussian"]


def test_minus_zero_is_thrown_away() -> None:
    zero, minus, plus = b"\xff" * (low_digits(1.0) + 1), b"\x01", b"\x00"
    (noisy,) = add_noise(np.full(1, 7), scale=1.0, law="laplace", fresh=scripted(zero, minus, b"\x00", zero[1:], minus))
    assert noisy == 6
    (noisy,) = add_noise(np.full(1, 7), scale=1.0, law="laplace", fresh=scripted(zero, plus))
    assert noisy == 7


@pytest.mark.parametrize("times", [1, 16, 17, 300])
def test_the_tail_has_no_end(times: int, undecided: list[Law]) -> None:
    """Noise of hundreds of scales, which nobody will ever draw, comes out right where the bytes say so."""
    n = low_digits(4.4e6)
    drawn = b"\xff" * n + b"\x00" * times + b"\xff" + b"\x01"
    (noisy,) = add_noise(np.zeros(1, np.int64), scale=4.4e6, law="laplace", fresh=scripted(drawn))
    assert noisy == -times * 2**n
    assert len(undecided) == (times > exact_sampler.MOST_HIGH)


# --- the kernel against exact arithmetic ---


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1e-3, *SCALES, 2.0**55])
def test_kernel_and_exact_arithmetic_make_the_same_of_the_same_bytes(
    law: Law, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = add_noise(np.arange(60), scale=scale, law=law, fresh=scripted(seeded(2)(40_000)))
    empty = np.empty((0, STORED), np.uint8)
    monkeypatch.setattr(exact_sampler, "_stored_digits", lambda scale: empty)
    assert add_noise(np.arange(60), scale=scale, law=law, fresh=scripted(seeded(2)(40_000))).tolist() == fast.tolist()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([0.3, 1.5, 1023.7, 4.4e6, 1e15]), st.floats(0, 12), st.integers(-3, 2))
def test_the_kernel_is_undecided_or_right(scale: float, in_scales: float, beside: int) -> None:
    magnitude = int(in_scales * scale)
    known = exponential((magnitude / Fraction(scale) - 1) ** 2 / 2, 32)
    drawn = min(max(known + beside, 0), 2**32 - 1)
    stream = np.frombuffer(drawn.to_bytes(4), np.uint8)
    kept = exact_sampler._is_kept(stream, 0, magnitude, scale)
    if drawn == known:
        assert kept == UNDECIDED
    else:
        assert kept in (UNDECIDED, YES if drawn < known else NO)
        if beside in (-3, 2) and 0 < drawn < 2**32 - 1:
            assert kept != UNDECIDED


@pytest.mark.parametrize("scale", [1e-300, 0.3, 1.5, 1023.7, 4.4e6, 1e15, 2.0**55])
def test_the_floating_point_keeping_probability_is_far_better_than_is_assumed(scale: float) -> None:
    """2^-50, of 2^-40 that are allowed for."""
    for in_scales in np.random.default_rng(0).uniform(0, 12, 300):
        magnitude = int(in_scales * scale)
        exact = exponential((magnitude / Fraction(scale) - 1) ** 2 / 2, 100)
        found = Fraction(exact_sampler._keeping_probability(magnitude, scale))
        assert abs(found - Fraction(exact, 2**100)) < DOUBT / 1000


# --- the law ---


def probabilities(law: Law, scale: float, edges: np.ndarray) -> np.ndarray:
    """P of each bin [edge, next edge), the first and last without end."""
    if law == "laplace":
        below = dlaplace(1 / scale).cdf(edges - 1)
    else:
        k = np.arange(-int(40 * scale) - 2, int(40 * scale) + 3)
        weights = np.exp(-0.5 * (k / scale) ** 2)
        below = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])[edges - k[0]]
    return np.diff(np.concatenate([[0.0], below, [1.0]]))


def binned(sample: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(edges, sample, side="right"), minlength=len(edges) + 1)


def edges_of(scale: float, reach: float) -> np.ndarray:
    return np.unique(np.round(np.linspace(-reach * scale, reach * scale, 200)).astype(np.int64))


def fits(sample: np.ndarray, law: Law, scale: float) -> bool:
    """Chi-square in bins over 4 scales either way; the two bins without end are the tails."""
    edges = edges_of(scale, 4)
    return bool(chisquare(binned(sample, edges), probabilities(law, scale, edges) * len(sample)).pvalue > 1e-4)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 1.5, 1023.7])
def test_the_law_is_the_one_it_says(law: Law, scale: float) -> None:
    """With a million draws a scale 2% off fails, on both sides: with 100 of 100 seeds, and the right one with none."""
    sample = noise(law, scale, 1_000_000)
    assert fits(sample, law, scale)
    assert not fits(sample, law, scale * 1.02)
    assert not fits(sample, law, scale / 1.02)


@pytest.mark.parametrize("scale", [4.4e6, 1e15])
@pytest.mark.parametrize(("law", "limit"), [("laplace", laplace), ("gaussian", norm)])
def test_noise_of_large_scale_has_the_continuous_law(law: Law, limit: rv_continuous, scale: float) -> None:
    """At 4.4e6 steps a million draws cannot tell. In 256 bins of equal probability; 2% off fails on both sides."""
    sample = noise(law, scale, 1_000_000)
    for claimed, is_right in ((scale, True), (scale * 1.02, False), (scale / 1.02, False)):
        seen = np.bincount((limit.cdf(sample / claimed) * 256).astype(int).clip(0, 255), minlength=256)
        assert (chisquare(seen).pvalue > 1e-4) == is_right


@pytest.mark.parametrize("law", LAWS)
def test_the_sign_and_the_low_digits_are_fair(law: Law) -> None:
    sample = noise(law, 4.4e6, 1_000_000)
    for bit in (sample < 0, *(np.abs(sample) >> place & 1 for place in range(8))):
        assert abs(bit.mean() - 0.5) < 4 * 0.5 / 1000


@pytest.mark.parametrize(("law", "reach"), [("laplace", 10.0), ("laplace", 12.0), ("gaussian", 4.5)])
def test_the_far_tail_is_neither_too_thin_nor_too_thick(law: Law, reach: float) -> None:
    """Among four million: 182, 25 and 27 expected. A tail of 1.5 scale (or 1/1.5) would show at once."""
    scale = 1023.7
    sample = np.concatenate([noise(law, scale, 1_000_000, seed) for seed in range(4)])
    edges = np.array([-int(reach * scale), int(reach * scale) + 1])
    for side, probability in zip((0, 2), probabilities(law, scale, edges)[[0, 2]], strict=True):
        expected = probability * len(sample)
        assert abs(binned(sample, edges)[side] - expected) < 4 * np.sqrt(expected)


def test_far_out_laplace_noise_goes_on_as_from_zero() -> None:
    """The first draw of a script by which it is ten times 2^n already."""
    n = low_digits(1.5)
    high = [
        add_noise(np.zeros(1, np.int64), scale=1.5, law="laplace", fresh=scripted(b"\xff" * n + b"\x00" * 10, tail))[0]
        for tail in (seeded(seed)(200) for seed in range(300))
    ]
    more = (np.abs(high) >> n) - 10
    assert set(np.abs(high) % 2**n) == {0}
    expected = np.array([1 - exp(-(2**n) / 1.5), exp(-(2**n) / 1.5)]) * 300
    assert chisquare([np.sum(more == 0), np.sum(more > 0)], expected).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1.5, 1023.7])
def test_opendp_draws_the_same_law(law: Law, scale: float) -> None:
    """Both are exact, so that only their two samples can differ. A scale 10% off shows in 20,000 of OpenDP's."""
    theirs = _by_opendp(np.zeros(20_000, np.int64), law=law, scale=scale)
    edges = edges_of(scale, 2.5)[:: 1 if scale < 2 else 10]

    def alike(ours: np.ndarray) -> bool:
        return bool(chi2_contingency([binned(theirs, edges), binned(ours, edges)]).pvalue > 1e-6)

    assert alike(noise(law, scale, 1_000_000))
    assert not alike(noise(law, scale * 1.1, 1_000_000))
    assert not alike(noise(law, scale / 1.1, 1_000_000))


# --- streams, ends and memory ---


def test_the_law_is_the_same_however_often_bytes_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here after every four draws or so. Were bytes thrown away that a draw has seen, long draws would be too rare."""
    monkeypatch.setattr(exact_sampler, "CHUNK", 180)
    assert fits(noise("laplace", 1.99, 200_000), "laplace", 1.99)


def test_the_longest_draw_of_the_kernel_fits_in_what_it_wants_to_have_left() -> None:
    """Every digit ties up to its last stored byte, and the high part has as many successes as the kernel counts."""
    scale = 1.5
    *low, more = (row.tobytes() for row in exact_sampler._stored_digits(scale))

    def decided(known: bytes, beside: int) -> bytes:
        return (int.from_bytes(known) + beside).to_bytes(STORED)

    ones = b"".join(decided(known, -1) for known in low)
    high = decided(more, -1) * exact_sampler.MOST_HIGH + decided(more, 1)
    magnitude = 2 ** len(low) * (exact_sampler.MOST_HIGH + 1) - 1
    drawn = ones + high + b"\x00"
    for stream, gaussian, expected in (
        (drawn + bytes(4), False, (1, len(drawn), False)),
        (drawn + b"\xff" * 4, True, (0, len(drawn) + 4, False)),
        (drawn + bytes(3), False, (0, 0, False)),
    ):
        noisy, digits = np.zeros(1, np.int64), exact_sampler._stored_digits(scale)
        assert exact_sampler._fill(noisy, 0, np.frombuffer(stream, np.uint8), 0, digits, scale, gaussian) == expected
        assert noisy == [magnitude if expected[0] else 0]


def test_every_call_asks_for_bytes_of_its_own_and_at_most_a_chunk_at_a_time() -> None:
    asked: list[int] = []

    def fresh(n: int) -> bytes:
        asked.append(n)
        return seeded(len(asked))(n)

    for _ in range(2):
        before = len(asked)
        add_noise(np.zeros(300_000, np.int64), scale=4.4e6, law="gaussian", fresh=fresh)
        assert len(asked) > before + 5
    assert max(asked) <= exact_sampler.CHUNK


@pytest.mark.parametrize("law", LAWS)
def test_a_huge_scale_cuts_the_noisy_value_and_not_the_noise(law: Law) -> None:
    noisy = noise(law, 1e19, 200)
    assert 0.5 < np.mean(np.abs(noisy) == WIDEST) < 0.9
    shifted = add_noise(np.full(200, 12345), scale=1e19, law=law, fresh=seeded())
    assert not np.isin(np.abs(shifted), [WIDEST - 12345, WIDEST + 12345]).any()
    assert ((shifted == noisy + 12345) | (np.abs(noisy) == WIDEST)).all()


@pytest.mark.parametrize("law", LAWS)
def test_a_tiny_scale_adds_nothing(law: Law) -> None:
    for scale in (5e-324, 1e-300, 1e-3):
        assert (noise(law, scale, 1000) == 0).all()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63) + 1, 2**63 - 1))
def test_the_noisy_value_is_cut_without_leaving_64_bits(value: int, noise: int) -> None:
    assert exact_sampler._cut_sum(np.int64(value), np.int64(noise)) == max(-WIDEST, min(value + noise, WIDEST))


def test_noise_keeps_the_shape_and_leaves_the_values_alone() -> None:
    values = np.arange(12).reshape(3, 4)[:, ::2]
    noisy = add_noise(values, scale=1e-3, law="laplace")
    assert noisy.tolist() == values.tolist()
    assert not np.shares_memory(noisy, values)
    assert add_noise(values.astype(np.int32), scale=2.0**55, law="laplace").dtype == np.int64
    assert add_noise(np.zeros((0, 3), np.int64), scale=1.0, law="gaussian").shape == (0, 3)


def test_a_uniform_number_is_compared_by_as_many_bytes_as_it_takes() -> None:
    third = [85] * 40  # 1/3 to base 256
    for last, is_below in ((84, True), (86, False)):
        stream = Bytes(scripted(bytes([*third, last])), 0)
        assert happens(stream, lambda bits: (1 << bits) // 3) == is_below
        assert stream.position == 41
