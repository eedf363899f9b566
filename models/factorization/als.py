"""Alternating least squares: the kernel that solves one side's factors given the other's.

One ridge regression a row: factors[r] = (X_r' X_r + L_r I)^-1 X_r' y_r, where X_r holds the other
side's factors of the row's ratings, y_r its centred ratings and L_r = precision * count_r.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from models.kernels import kernel
from models.ratings import Doubles, Floats, Grouped, Ints


@kernel
def _solve_rows(
    first: int,
    last: int,
    start: np.ndarray,
    other: Ints,
    values: Floats,
    factors_of_other: Doubles,
    centre: float,
    ridge: Doubles,
    factors: Doubles,
) -> None:
    """`factors` holds what is added to the right-hand side X' y, and then the solution."""
    d = factors.shape[1]
    gram = np.empty((d, d))
    x = np.empty(d)
    nothing = np.zeros(d)
    for row in range(first, last):
        end = start[row + 1]
        gram[:] = 0.0
        x[:] = factors[row]
        for k in range(start[row], end, 4):  # four ratings at a time: a quarter of the traffic through `gram`
            f0, y0 = factors_of_other[other[k]], values[k] - centre
            f1 = factors_of_other[other[k + 1]] if k + 1 < end else nothing
            f2 = factors_of_other[other[k + 2]] if k + 2 < end else nothing
            f3 = factors_of_other[other[k + 3]] if k + 3 < end else nothing
            y1 = values[k + 1] - centre if k + 1 < end else 0.0
            y2 = values[k + 2] - centre if k + 2 < end else 0.0
            y3 = values[k + 3] - centre if k + 3 < end else 0.0
            for p in range(d):
                a0, a1, a2, a3 = f0[p], f1[p], f2[p], f3[p]
                x[p] += y0 * a0 + y1 * a1 + y2 * a2 + y3 * a3
                gram_row = gram[p]
                for q in range(min(d, (p // 4 + 1) * 4)):  # the lower triangle, in whole vector lanes
                    gram_row[q] += a0 * f0[q] + a1 * f1[q] + a2 * f2[q] + a3 * f3[q]
        for p in range(d):
            gram[p, p] += ridge[row]
        _cholesky_solve(gram, x)
        factors[row] = x


@kernel
def _cholesky_solve(a: Doubles, x: Doubles) -> None:
    """Solve a z = x for z, in place of x; of the positive definite `a` the lower triangle is read and overwritten."""
    d = len(x)
    for p in range(d):
        row = a[p]
        for q in range(p):
            above, rest = a[q], row[q]
            for s in range(q):
                rest -= row[s] * above[s]
            row[q] = rest * above[q]
        rest = row[p]
        least = 1e-14 * rest  # where the ridge is lost in the rounding of huge factors, it is made this large
        for s in range(p):
            rest -= row[s] * row[s]
        row[p] = 1.0 / np.sqrt(max(rest, least))  # the diagonal holds reciprocals
    for p in range(d):
        row, rest = a[p], x[p]
        for q in range(p):
            rest -= row[q] * x[q]
        x[p] = rest * row[p]
    for p in range(d - 1, -1, -1):
        row = a[p]
        x[p] *= row[p]
        for q in range(p):
            x[q] -= row[q] * x[p]


@kernel
def _add_sums(
    start: np.ndarray, other: Ints, values: Floats, factors_of_other: Doubles, centre: float, sums: Doubles
) -> None:
    for row in range(len(start) - 1):
        to = sums[row]
        for k in range(start[row], start[row + 1]):
            y, x = values[k] - centre, factors_of_other[other[k]]
            for p in range(len(to)):
                to[p] += y * x[p]


def solve_factors(
    ratings: Grouped, factors_of_other: Doubles, *, centre: float, precision: float, n_threads: int = 1
) -> Doubles:
    """One half sweep: the ridge solution of every row of `ratings` given the other side's factors.

    Args:
      ratings: grouped by the side to solve for.
      factors_of_other: shape (n_other, d), indexed by `ratings.other`.
      centre: subtracted from every rating, in rating units.
      precision: ridge weight per rating of a row (weighted lambda); dimensionless, positive.
      n_threads: rows are split among so many threads, equal in ratings. Changes only the time.
    Returns:
      Shape (n_rows, d); zero for a row without ratings.
    """
    ridge = precision * np.maximum(ratings.counts, 1)
    factors = np.zeros((len(ridge), factors_of_other.shape[1]))
    _solve(ratings, factors_of_other, centre, ridge, factors, n_threads)
    return factors


def right_hand_sides(ratings: Grouped, factors_of_other: Doubles, *, centre: float) -> Doubles:
    """X_r' y_r of every row: the sum of its centred ratings times the other side's factors; shape (n_rows, d)."""
    sums = np.zeros((len(ratings.start) - 1, factors_of_other.shape[1]))
    _add_sums(ratings.start, ratings.other, ratings.values, factors_of_other, centre, sums)
    return sums


def solve_factors_for(
    ratings: Grouped, right: Doubles, factors_of_other: Doubles, *, precision: float, n_threads: int = 1
) -> Doubles:
    """(X_r' X_r + precision I)^-1 right_r of every row; the values of `ratings` are not looked at.

    Args:
      right: shape (n_rows, d), such as `right_hand_sides` with noise.
      precision: ridge weight, the same for every row (plain lambda); positive.
    Returns:
      Shape (n_rows, d).
    """
    n_rows, _ = right.shape
    without_values = Grouped(ratings.start, ratings.other, np.zeros_like(ratings.values))
    factors = right.copy()
    _solve(without_values, factors_of_other, 0.0, np.full(n_rows, precision), factors, n_threads)
    return factors


def _solve(
    ratings: Grouped, factors_of_other: Doubles, centre: float, ridge: Doubles, factors: Doubles, n_threads: int
) -> None:
    shares = np.arange(n_threads + 1) * ratings.start[-1] // n_threads
    edges = np.searchsorted(ratings.start[:-1], shares)
    edges[0], edges[-1] = 0, len(factors)

    def solve(first: int, last: int) -> None:
        _solve_rows(first, last, ratings.start, ratings.other, ratings.values, factors_of_other, centre, ridge, factors)

    if n_threads == 1:
        solve(0, len(factors))
    else:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(solve, edges[:-1], edges[1:]))
