"""Ratings made to be recognised, and all the forms in which their leaving would be a leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.leak_search import Secret

ID = "unmistakable"
NUMERIC_ID = 7301948265501937
COUNT, N_USERS, N_RATINGS = 7919, 8011, 12553
"""Of the popular item, of all users, of all ratings: three primes that nothing else is likely to be."""
SEED = 0xF0E1D2C3B4A59687
PASSWORD = "swordfish-in-the-environment"
PATTERN = tuple(np.random.default_rng(5).integers(1, 6, 40).tolist())
"""What the user with the numeric id gave to the first forty items, in order."""
BAD_VALUE = "83.254"
"""No time of day has so many seconds."""
N_ITEMS, POPULAR = 60, 17
N_RATED = 20
"""So few other items share the ratings that no cell of theirs, 1,024 steps a rating, is noisy enough to be a count."""
QUOTED = f"{ID}-7 and {NUMERIC_ID} rated; {COUNT} of {N_RATINGS} by {N_USERS}: {list(PATTERN)}, seed {SEED}"
"""What a library might say of the ratings it fails on."""

INPUTS = ("films.csv", "asked.csv", "items.csv")
ASKED = "0.7345182961"
"""An epsilon that half the users ask for; no mean and no threshold comes out like it by chance."""


def write_planted(folder: Path, *more_rows: str) -> list[str]:
    """The planted ratings and their catalogue in `folder`; returns the arguments that name them."""
    rng = np.random.default_rng(11)
    pairs = [(user, POPULAR) for user in range(COUNT - 1)] + [(user, 1) for user in range(COUNT - 1, N_USERS - 1)]
    taken = set(pairs)
    while len(pairs) < N_RATINGS - len(PATTERN):
        pair = (int(rng.integers(N_USERS - 1)), int(rng.integers(N_RATED)))
        if pair[1] != POPULAR and pair not in taken:
            taken.add(pair)
            pairs.append(pair)
    rows = [f"{ID}-{user},i{item},{value}" for (user, item), value in zip(pairs, rng.integers(1, 6, len(pairs)))]  # noqa: B905
    rows += [f"{NUMERIC_ID},i{item},{value}" for item, value in enumerate(PATTERN)]
    (folder / "films.csv").write_text("\n".join(["user,item,rating", *rows, *more_rows, ""]))
    asked = [f"{ID}-{user},{ASKED}" for user in range(0, N_USERS - 1, 2)]
    (folder / "asked.csv").write_text("\n".join(["user,epsilon", *asked, ""]))
    items = [f"i{item},Title {item},a|b" for item in range(N_ITEMS)]
    (folder / "items.csv").write_text("\n".join(["item,title,genres", *items, ""]))
    return ["--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1"]


def secrets_of(folder: Path) -> tuple[Secret, ...]:
    """What must be found nowhere after a run on the ratings in `folder`."""
    # The generator's own state gives the noise away as well as the seed does.
    inside = np.random.PCG64(SEED).state["state"]
    return (
        Secret.text("user id", ID),
        Secret.big_number("numeric user id", NUMERIC_ID),
        Secret.count("ratings of an item", COUNT),
        Secret.count("users", N_USERS),
        Secret.count("ratings", N_RATINGS),
        Secret.ratings("somebody's ratings", PATTERN),
        Secret.text("bad value", BAD_VALUE),
        Secret.text("what half the users asked for", ASKED),
        Secret.digests("digest of the preferences", (folder / "asked.csv").read_bytes()),
        Secret.big_number("seed", SEED),
        Secret.big_number("generator's start", inside["state"]),
        Secret.big_number("generator's increment", inside["inc"]),
        Secret.digests("digest of the ratings", (folder / "films.csv").read_bytes()),
        Secret.digests("digest of a user id", str(NUMERIC_ID).encode()),
        Secret.text("password", PASSWORD),
    )
