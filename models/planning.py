"""What `pdp-histogram` would come to at an epsilon, foretold from public things alone.

Ratings nobody gave are made from a histogram that is public (that of an earlier release, or the sample's), and the
real recommender is cross-validated on them. What is made up:

- *Items.* Noisy counts are projected onto counts that are not negative and have the same sum. An item's mean is drawn
  from its posterior given the noisy histogram, so that means are neither spread by noise nor shrunk together.
- *Levels.* Given its mean an item has the pooled distribution of levels, tilted exponentially to that mean, and
  narrowed alike for all items until spread within and between items add up to the pooled spread.
- *Users.* No release knows a user. How many ratings each gives, and how much of an item's spread is between its
  users, are the sample's (ACTIVITY, USER_SHARE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from models.errors import SpecError
from models.evaluation import client_scores
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import SeededNoise
from models.privacy.specification import MOST_EPSILON, PrivacySpecification
from models.ratings import Catalogue, Doubles, Ratings, RatingScale
from models.recommender import Fitted

ACTIVITY = (
    *(0.134, 0.147, 0.167, 0.194, 0.226, 0.259, 0.295, 0.338, 0.384, 0.445),
    *(0.513, 0.606, 0.715, 0.846, 0.989, 1.223, 1.492, 1.937, 2.764, 6.327),
)
"""How many ratings a user gives, over the mean of all: by twentieths of the sample's users, the least active first."""

USER_SHARE = {False: 0.26, True: 0.295}
"""How much of an item's spread of ratings is between its users, without item features and with them.

Such that what is foretold for the sample from its own histogram, without noise, is what cross-validation of the sample
gives: RMSE .877 and .860. That features help is then in the share; no features are made up.
"""

MOST_RATINGS = 4_000_000
"""How many ratings are made up at the most, so that a plan takes seconds; of more, a share of the items and users is.

An item and a user then have as many ratings as before, and noise weighs as much.
"""

LEAST_ITEMS = 300
"""How many items are left at the least; their ratings are then so many that fewer of them do no harm."""

PANEL = 2_000
"""How many of the made-up users are asked: their errors are measured, everybody's ratings are in the histogram."""

TEST_SHARE = 0.1

MOST_CELLS = 2**22
"""Items times levels at the most, when somebody declares a catalogue."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """What is known of the ratings without the ratings.

    Args:
      cells: shape (n_items, n_levels), noisy counts of ratings.
      cell_variance: shape (n_items,), of the noise in each cell of an item, in counts squared.
    """

    cells: Doubles
    cell_variance: Doubles
    scale: RatingScale

    @property
    def n_ratings(self) -> int:
        """How many ratings there are, up to the noise; at least one."""
        return max(round(float(self.cells.sum())), 1)

    @property
    def above_noise(self) -> float:
        """The share of the ratings that belong to items whose count exceeds three deviations of its noise."""
        counts = self.cells.sum(axis=1)
        clear = counts > 3 * np.sqrt(self.cells.shape[1] * self.cell_variance)
        return float(counts[clear].sum() / self.n_ratings)

    def spread_over(self, n_items: int) -> Histogram:
        """The same ratings in a catalogue of another size: its most rated items, or copies that share their ratings.

        Raises:
          SpecError: the catalogue is larger than a plan makes up.
        """
        if n_items * self.cells.shape[1] > MOST_CELLS:
            raise SpecError(
                f"a plan makes up at most {MOST_CELLS:,} cells, one for every item and level; {n_items:,} items on the "
                f"scale {self.scale} have more. Plan for fewer items, or a coarser scale."
            )
        order = np.argsort(-self.cells.sum(axis=1), kind="stable")
        rows = order[np.arange(n_items) % len(order)]
        copies = np.bincount(rows, minlength=len(order))[rows]
        return replace(self, cells=self.cells[rows] / copies[:, None], cell_variance=self.cell_variance[rows] / copies)

    def thinned(self, share: float, rng: np.random.Generator) -> Histogram:
        """A share of the items, spread evenly from the most to the least rated; each with all of its ratings."""
        order = np.argsort(-self.cells.sum(axis=1), kind="stable")
        wanted = min(max(round(share * len(order)), LEAST_ITEMS), len(order))
        rows = order[((np.arange(wanted) + rng.random()) / wanted * len(order)).astype(np.int64)]
        return replace(self, cells=self.cells[rows], cell_variance=self.cell_variance[rows])

    def on(self, scale: RatingScale) -> Histogram:
        """Mapped linearly to another scale: every level to the nearest one there."""
        shares = (self.scale.levels - self.scale.low) / self.scale.width
        cells = np.zeros((len(self.cells), len(scale.levels)))
        np.add.at(cells.T, scale.level_of(scale.low + shares * scale.width), self.cells.T)
        return replace(self, cells=cells, scale=scale)


@dataclass(frozen=True)
class Foretold:
    """RMSE on made-up ratings: mean and standard deviation over repetitions.

    Attributes:
      loss, loss_sd: by how much RMSE exceeds that without noise, as a fraction of that.
    """

    rmse: float
    rmse_sd: float
    loss: float
    loss_sd: float


@dataclass(frozen=True)
class Plan:
    """RMSE against epsilon, and what it is to be compared with.

    Attributes:
      without_noise: the same recommender at no privacy.
      alone: a user's own ratings and nobody else's, which is what is left when the noise drowns everything.
      n_ratings, n_users, n_items: what it was foretold for.
    """

    epsilons: tuple[float, ...]
    foretold: tuple[Foretold, ...]
    without_noise: Foretold
    alone: Foretold
    n_ratings: int
    n_users: int
    n_items: int
    scale: RatingScale

    def kept(self, foretold: Foretold) -> float | None:
        """How much of what others' ratings improve is left at this noise, of 1; None where they improve nothing."""
        gain = self.alone.rmse - self.without_noise.rmse
        return max(0.0, (self.alone.rmse - foretold.rmse) / gain) if gain > self.without_noise.rmse_sd / 2 else None


def foretell(
    histogram: Histogram,
    epsilons: Sequence[float],
    *,
    n_ratings: int,
    n_users: int,
    user_share: float,
    recommender: PDPHistogram,
    repetitions: int = 8,
    seed: int = 0,
) -> Plan:
    """Cross-validate the recommender at each epsilon on ratings made up from a public histogram.

    Args:
      epsilons: what each rating pays, unit rating.
      n_ratings, n_users: of the ratings to be foretold.
      user_share: how much of an item's spread of ratings is between its users, of 1; see USER_SHARE.
      repetitions: each makes up ratings of its own, leaves out another tenth and draws other noise.
    """
    share = min(1.0, MOST_RATINGS / n_ratings)
    levels = (*epsilons, MOST_EPSILON)
    errors = []
    for child in np.random.SeedSequence(seed).spawn(repetitions):
        rng = np.random.default_rng(child)
        part = histogram.thinned(share, rng) if share < 1 else histogram
        n_made = min(max(round(n_ratings * part.n_ratings / histogram.n_ratings), 1), MOST_RATINGS)
        n_asked = max(round(n_users * n_made / n_ratings), 1)
        ratings = make_up(part, n_ratings=n_made, n_users=n_asked, user_share=user_share, rng=rng)
        errors.append(_errors(ratings, levels, recommender, rng))
    rmse = np.array(errors)
    loss = rmse / rmse[:, -2:-1] - 1
    *foretold, without_noise, alone = (_foretold(rmse[:, at], loss[:, at]) for at in range(len(levels) + 1))
    return Plan(
        tuple(epsilons),
        tuple(foretold),
        without_noise,
        alone,
        n_ratings,
        n_users,
        len(histogram.cells),
        histogram.scale,
    )


def _foretold(rmse: Doubles, loss: Doubles) -> Foretold:
    return Foretold(float(rmse.mean()), float(rmse.std(ddof=1)), float(loss.mean()), float(loss.std(ddof=1)))


def _errors(
    ratings: Ratings, epsilons: Sequence[float], recommender: PDPHistogram, rng: np.random.Generator
) -> list[float]:
    """RMSE of a tenth of the panel's ratings, by epsilon, and last what their own ratings alone give."""
    is_test = rng.random(len(ratings)) < TEST_SHARE
    is_test[rng.integers(len(ratings))] = True  # with few ratings, one at least
    asked = np.zeros(ratings.n_users, bool)
    asked[rng.permutation(ratings.n_users)[:PANEL]] = True
    asked[ratings.users[is_test][0]] = True
    train, own = ratings.where(~is_test), asked[ratings.users]
    panel, test = ratings.where(own & ~is_test), ratings.where(own & is_test)

    def rmse(fitted: Fitted[SeededNoise]) -> float:
        scores = client_scores(fitted, panel, test)
        assert scores is not None
        return scores.rmse

    fits = [
        recommender.fit(train, PrivacySpecification(epsilon=epsilon), SeededNoise(int(rng.integers(2**62))))
        for epsilon in epsilons
    ]
    nobody = ratings.where(np.zeros(len(ratings), bool))
    nothing = recommender.fit(nobody, PrivacySpecification(epsilon=MOST_EPSILON), SeededNoise(0))
    return [rmse(fitted) for fitted in (*fits, nothing)]


def make_up(
    histogram: Histogram, *, n_ratings: int, n_users: int, user_share: float, rng: np.random.Generator
) -> Ratings:
    """Ratings nobody gave, in the proportions of the histogram. A pair of user and item may occur twice.

    A user's ratings are correlated by a Gaussian copula: with z of the user and e of the rating standard normal,
    a rating is the quantile Phi(sqrt(user_share) z + sqrt(1 - user_share) e) of its item's distribution.
    """
    scale = histogram.scale
    counts = projected(histogram.cells.sum(axis=1), histogram.n_ratings)
    items = np.repeat(np.arange(len(counts), dtype=np.int32), _whole(counts, n_ratings, rng))
    rng.shuffle(items)
    activity = np.resize(ACTIVITY, n_users)
    users = np.repeat(np.arange(n_users, dtype=np.int32), _whole(activity, n_ratings, rng))

    of_user = np.sqrt(user_share) * rng.normal(size=n_users)
    quantile = ndtr(of_user[users] + np.sqrt(1 - user_share) * rng.normal(size=n_ratings))
    up_to = np.cumsum(level_shares(histogram, counts, _drawn_means(histogram, rng)), axis=1)
    values = scale.levels[_first_above(up_to, items, quantile)].astype(np.float32)
    catalogue = Catalogue.of_items([str(item) for item in range(len(counts))], public=True)
    return Ratings(users, items, values, tuple(str(user) for user in range(n_users)), catalogue, scale)


def projected(noisy: Doubles, total: float) -> Doubles:
    """The nearest numbers, in squares, that are not negative and add up to `total`, which is positive; shape (n,)."""
    ordered = np.sort(noisy)[::-1]
    lowered = (np.cumsum(ordered) - total) / np.arange(1, len(noisy) + 1)
    last = np.flatnonzero(ordered > lowered)[-1]
    result: Doubles = np.maximum(noisy - lowered[last], 0.0)
    return result


def _whole(shares: Doubles, total: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers in proportion to `shares` that add up to `total`; what is left of rounding down goes by lot."""
    exact = shares * (total / shares.sum())
    whole = np.floor(exact).astype(np.int64)
    left = np.maximum(exact - whole, 1e-12)
    result: np.ndarray = whole + rng.multinomial(max(total - whole.sum(), 0), left / left.sum())
    return result


def _drawn_means(histogram: Histogram, rng: np.random.Generator) -> Doubles:
    """A mean for every item, drawn from its posterior: normal, around the pooled mean; shape (n_items,)."""
    scale, defaults = histogram.scale, PDPHistogram()
    levels, unit = scale.levels, (scale.width / 4) ** 2
    count = np.maximum(histogram.cells.sum(axis=1), 1.0)
    observed = np.clip(histogram.cells @ (levels - _mean(histogram)) / count, -scale.width, scale.width)
    doubt = defaults.rating_variance * unit / count
    doubt += histogram.cell_variance * ((levels - scale.midpoint) ** 2).sum() / count**2
    spread = defaults.item_variance * unit
    known = count > 5 * np.sqrt(len(levels) * histogram.cell_variance)  # whose count is more than noise
    if known.any():
        weight = known / (spread + doubt) ** 2
        spread = float(np.clip((weight * (observed**2 - doubt)).sum() / weight.sum(), spread / 20, 5 * spread))
    trust = spread / (spread + doubt)
    drawn: Doubles = _mean(histogram) + observed * trust + np.sqrt(spread * (1 - trust)) * rng.normal(size=len(count))
    return drawn


def _pooled(histogram: Histogram) -> Doubles:
    """The shares of the levels over all items; shape (n_levels,)."""
    cells = histogram.cells.sum(axis=0)
    return projected(cells / max(cells.sum(), 1.0), 1.0)


def _mean(histogram: Histogram) -> float:
    return float(_pooled(histogram) @ histogram.scale.levels)


def level_shares(histogram: Histogram, counts: Doubles, means: Doubles) -> Doubles:
    """A distribution of levels for every item, with its mean as far as the scale allows; shape (n_items, n_levels).

    Of the family pooled * exp(a x + b x^2): a by item, for its mean; b for all, so that the spread within items,
    weighted by `counts`, is what the spread between them leaves of the pooled spread.
    """
    pooled = _pooled(histogram)
    x = np.linspace(-1, 1, len(pooled))
    scale = histogram.scale
    wanted = (means - scale.midpoint) / (scale.width / 2)
    whole = pooled @ x**2 - (pooled @ x) ** 2
    weights = counts / counts.sum()

    def family(b: float) -> tuple[Doubles, Doubles]:
        """Distributions for a range of a, and their means."""
        logs = np.log(np.maximum(pooled, 1e-12)) + np.linspace(-30, 30, 601)[:, None] * x + b * x**2
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares, shares @ x

    def spread_within(b: float) -> float:
        shares, mean = family(b)
        return float(weights @ np.interp(wanted, mean, shares @ x**2 - mean**2))

    left = whole - weights @ (wanted - weights @ wanted) ** 2
    low, high = -30.0, 30.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if spread_within(middle) < left else (low, middle)
    shares, mean = family(high)
    return np.stack([np.interp(wanted, mean, column) for column in shares.T], axis=1)


def _first_above(up_to: Doubles, rows: np.ndarray, quantile: Doubles) -> np.ndarray:
    """The first column of each row's cumulated shares that is not below its quantile; shape (n,), by bisection."""
    low = np.zeros(len(rows), np.int64)
    high = np.full(len(rows), up_to.shape[1] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        is_below = up_to[rows, middle] < quantile
        low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
    return low
