"""Batches: a release adds what is new to the noisy histogram of the releases before it.

Each rating enters one batch, once in its life, so that refreshing V costs nobody a second time (parallel
composition). What earlier batches took in is a private record, kept under keyed hashes; what they gave out, the noisy
histogram, is public and lives in the previous release. docs/guarantees.md#batches has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.errors import SpecError
from models.privacy.guarantee import Guarantee
from models.privacy.noise import Steps
from models.ratings import Catalogue, Doubles, Ints, Mask, Private, Ratings, RatingScale
from models.release import Release

BatchKind = Literal["fresh", "corrected", "withdrawal"]
"""New ratings alone; changed ones corrected as well; one user's ratings taken out."""

Hashes = NDArray[np.uint64]
Code = TypeVar("Code", np.uint64, np.int64)

IN_ONE_BATCH = (
    "whether and when a rating comes does not depend on other ratings, users and items keep their names, and the list "
    "of what was released is kept"
)

THAT_SOMEBODY_WITHDREW = "that somebody withdrew, whose ratings batches held, is no secret; who it was, is"


@dataclass(frozen=True, eq=False)
class Told:
    """The sum of what earlier releases gave out, by rows of a catalogue; public.

    Args:
      histogram: shape (n_items, n_levels), noisy, in grid steps; zero for items that no release knew.
      cell_variance: shape (n_items,), of the noise in each cell of an item, in weights squared.
    """

    histogram: Steps
    cell_variance: Doubles


@dataclass(frozen=True, eq=False, repr=False)
class Batch(Private):
    """What a release of these ratings moves, and what it adds that to.

    Args:
      kind: what was declared, before a rating was read, that this batch may do.
      told: by rows of the ratings' catalogue.
      enters: shape (n,), whether the rating is put into its cell by this release.
      old_levels: shape (n,), the cell it is taken out of, where `old_steps` is not 0.
      old_steps: shape (n,), how much of it was put there.
    """

    kind: BatchKind
    told: Told
    enters: Mask
    old_levels: NDArray[np.int64]
    old_steps: Steps

    @property
    def is_fresh(self) -> Mask:
        """Shape (n,), the ratings of which no release knows anything: those to judge one by."""
        fresh: Mask = self.enters & (self.old_steps == 0)
        return fresh

    def where(self, keep: Mask) -> Batch:
        return replace(self, enters=self.enters[keep], old_levels=self.old_levels[keep], old_steps=self.old_steps[keep])


@dataclass(frozen=True, eq=False, repr=False)
class Moves(Private):
    """What ratings put into cells of a histogram (positive steps) or take out (negative); shape (n,) each."""

    users: Ints
    items: Ints
    levels: NDArray[np.int64]
    steps: Steps

    def histogram(self, n_items: int, n_levels: int) -> Steps:
        """Their sum in every cell; shape (n_items, n_levels), exact integers."""
        cell = self.items.astype(np.int64) * n_levels + self.levels
        total = np.bincount(cell, weights=self.steps, minlength=n_items * n_levels)  # exact below 2^53
        return total.astype(np.int64).reshape(n_items, n_levels)


def moves_of(ratings: Ratings, steps: Steps) -> Moves:
    """What a release of `ratings` moves, where each weighs `steps`, shape (n,): all of it, or what the batch says."""
    levels = ratings.scale.level_of(ratings.values)
    if ratings.batch is None:
        return Moves(ratings.users, ratings.items, levels, steps)
    batch = ratings.batch
    comes, goes = batch.enters & (steps > 0), batch.old_steps > 0
    return Moves(
        np.concatenate([ratings.users[comes], ratings.users[goes]]),
        np.concatenate([ratings.items[comes], ratings.items[goes]]),
        np.concatenate([levels[comes], batch.old_levels[goes]]),
        np.concatenate([steps[comes], -batch.old_steps[goes]]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Record(Private):
    """What earlier batches moved, oldest first, under keyed hashes of user and item; shape (n,) each but `left`.

    Args:
      is_published: whether the batch became a release. One that was paid for and failed is no part of the histogram,
        and its ratings have had their turn all the same.
      left: shape (k,), who has withdrawn, or asked to: no batch takes them in.
      taken_out: shape (m,), for whom a withdrawal was paid, and whether it is published; shape (m,).
    """

    users: Hashes
    items: Hashes
    levels: NDArray[np.int64]
    steps: Steps
    is_published: Mask
    left: Hashes
    taken_out: Hashes
    is_out: Mask


def next_batch(
    ratings: Ratings, users: Hashes, items: Hashes, record: Record, before: Release | None, kind: BatchKind
) -> Ratings:
    """The ratings as a batch: who has withdrawn is gone, and each rating knows whether it enters.

    A rating enters if no batch took in one of its user for its item; where corrections were declared, it also
    changes places if it is another than was released. Nobody else's ratings have a say in it.

    Args:
      users: shape (n_users,), the users' hashes.
      items: shape (n_items,), hashes of the items of `catalogue_after(ratings.catalogue, before)`.

    Raises:
      SpecError: the release before is on another scale.
    """
    catalogue = catalogue_after(ratings.catalogue, before)
    told = told_by(before, catalogue, ratings.scale)
    stays = replace(ratings, catalogue=catalogue).where(~np.isin(users, record.left)[ratings.users])
    n_items = len(catalogue)

    user, item = _row_of(record.users, users), _row_of(record.items, items)
    is_here = (user >= 0) & (item >= 0)
    recorded = np.where(is_here, user * n_items + item, -1)
    own = (stays.users.astype(np.int64) * n_items + stays.items).astype(np.int64)
    enters = ~np.isin(own, recorded)

    n_levels = len(ratings.scale.levels)
    held = is_here & record.is_published
    cells, held_steps = _net(recorded[held], record.levels[held], record.steps[held], n_levels)
    pair = _row_of(own, cells // n_levels)  # a pair is in one cell at a time
    is_elsewhere = (pair >= 0) & (np.append(cells, -1)[pair] % n_levels != stays.scale.level_of(stays.values))
    changed = is_elsewhere & (kind == "corrected")
    old_levels = np.where(changed, np.append(cells, 0)[pair] % n_levels, 0)
    old_steps = np.where(changed, np.append(held_steps, 0)[pair], 0)
    return replace(stays, batch=Batch(kind, told, enters | changed, old_levels, old_steps))


def withdrawal(
    user: np.uint64, label: str, items: Hashes, catalogue: Catalogue, record: Record, before: Release
) -> Ratings:
    """What the releases hold of one user, as a batch that takes it out.

    Args:
      items: shape (n_items,), hashes of the items of the release before.
      catalogue: the same items.
    """
    scale = _scale_of(before)
    its_items = _row_of(record.items, items)
    mine = (record.users == user) & (its_items >= 0) & record.is_published
    cells, held = _net(its_items[mine], record.levels[mine], record.steps[mine], len(scale.levels))
    rows, levels = np.divmod(cells, len(scale.levels))
    told = told_by(before, catalogue, scale)
    return Ratings(
        np.zeros(len(cells), np.int32),
        rows.astype(np.int32),
        scale.levels[levels].astype(np.float32),
        (label,),
        catalogue,
        scale,
        own_epsilon=np.zeros(len(cells)),  # nothing enters, so nobody is asked
        batch=Batch("withdrawal", told, np.zeros(len(cells), np.bool_), levels, held),
    )


def catalogue_after(catalogue: Catalogue, before: Release | None) -> Catalogue:
    """Today's items, then those that only the release before knows: with their titles, and without features."""
    gone = [row for row, item in enumerate(before.items) if item not in catalogue.row_of] if before else []
    if before is None or not gone:
        return catalogue
    return replace(
        catalogue,
        items=(*catalogue.items, *(before.items[row] for row in gone)),
        titles=(*catalogue.titles, *(before.titles[row] for row in gone)),
        features=np.vstack([catalogue.features, np.zeros((len(gone), catalogue.features.shape[1]), np.float32)]),
    )


def told_by(before: Release | None, catalogue: Catalogue, scale: RatingScale) -> Told:
    """The statistics of the release before by rows of `catalogue`, which has all its items; nothing, without one.

    Raises:
      SpecError: it is on another scale.
    """
    histogram = np.zeros((len(catalogue), len(scale.levels)), np.int64)
    cell_variance = np.zeros(len(catalogue))
    if before is not None:
        if _scale_of(before) != scale:
            raise SpecError(
                f"the release before this batch is on the scale {_scale_of(before)}, and this batch is declared on "
                f"{scale}: their histograms cannot be added. Declare the same scale."
            )
        rows = [catalogue.row_of[item] for item in before.items]
        histogram[rows] = before.statistics["histogram"]
        cell_variance[rows] = before.statistics["cell_variance"]
    return Told(histogram, cell_variance)


def in_batches(promise: Guarantee, kind: BatchKind) -> Guarantee:
    """What a batch promises, given the promise of one release.

    A corrected rating moves in two cells, and one that is taken out in one: each time at most what entering costs.
    """
    assert promise.epsilon is not None
    further = (IN_ONE_BATCH, THAT_SOMEBODY_WITHDREW) if kind == "withdrawal" else (IN_ONE_BATCH,)
    at_most = {"fresh": promise.epsilon, "corrected": 2 * promise.epsilon, "withdrawal": promise.epsilon}[kind]
    sentence = {
        "fresh": "Each rating pays once, in the batch in which it is first released: {0} The batches before keep the "
        "promises on their versions.",
        "corrected": f"Each rating pays once, in the batch in which it is first released: {{0}} Correcting a changed "
        f"one costs that rating epsilon {at_most:g} more, in each batch that corrects.",
        "withdrawal": "One person's ratings were taken out of the batches released before: for each of them that is "
        "one more release. {0}",
    }[kind]
    n_moves = at_most / promise.epsilon
    return promise.model_copy(
        update={
            "epsilon": at_most,
            "levels": tuple(
                level.model_copy(update={"low": n_moves * level.low, "high": n_moves * level.high})
                for level in promise.levels
            ),
            "conditions": (*promise.conditions, *further),
            "sentence": sentence.format(promise.sentence),
            "reference": "docs/guarantees.md#batches",
        }
    )


def _scale_of(release: Release) -> RatingScale:
    return RatingScale(low=release.low, high=release.high, step=release.step)


def _row_of(wanted: NDArray[Code], own: NDArray[Code]) -> NDArray[np.int64]:
    """Where each of `wanted` stands in `own`, -1 where it does not."""
    if not len(own):
        return np.full(len(wanted), -1)
    order = np.argsort(own)
    place = order[np.minimum(np.searchsorted(own, wanted, sorter=order), len(own) - 1)]
    return np.where(own[place] == wanted, place, -1)


def _net(
    owners: NDArray[np.int64], levels: NDArray[np.int64], steps: Steps, n_levels: int
) -> tuple[NDArray[np.int64], Steps]:
    """What is left in each cell `owner * n_levels + level` that holds something: the cells, and their steps."""
    cells, which = np.unique(owners * n_levels + levels, return_inverse=True)
    net = np.bincount(which, weights=steps, minlength=len(cells)).astype(np.int64)
    return cells[net > 0], net[net > 0]
