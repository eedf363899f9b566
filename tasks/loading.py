"""From a named source to a table, a scale and a catalogue: everything that validation needs."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import SpecError
from models.ratings import Catalogue, RatingScale
from tasks.guard import guarded
from tasks.item_files import read_items
from tasks.rating_files import RatingsFile, read_ratings
from tasks.sample import read_sample
from tasks.table import RatingTable
from tasks.text_files import expanded
from tasks.unstored import unstored_task


@dataclass(frozen=True, repr=False)
class Loaded:
    """What was read, not yet validated."""

    table: RatingTable
    scale: RatingScale
    catalogue: Catalogue

    def __repr__(self) -> str:
        return "<loaded, not validated>"


@guarded("Reading the ratings")
def load(file: RatingsFile | None, items: str | None, declared_scale: RatingScale | None) -> Loaded:
    """Read the ratings (None: the sample) and the items.

    Raises:
      SpecError: a file is not what it should be, or the scale is neither known nor declared.
      EnvironmentFault: a file cannot be read.
    """
    catalogue = read_items(expanded(items)) if items else None
    if file is None:
        scale, table, published = read_sample()
        return Loaded(table, declared_scale or scale, catalogue or published)
    format_, table = read_ratings(file)
    known = declared_scale or format_.scale
    if known is None:
        raise SpecError(
            f"the scale of {file.path} is not known, and Jali does not measure it: a measured bound is itself a leak. "
            "Declare it, for example with --scale 1:5:1."
        )
    if catalogue is None:
        listed = format_.catalogue
        catalogue = Catalogue.of_items(list(listed or table.item_labels), public=listed is not None)
    return Loaded(table, known, catalogue)


load_task = unstored_task(load, "load")
