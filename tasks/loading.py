"""From a named source to a table, a scale and a catalogue: everything that validation needs."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import SpecError
from models.privacy.specification import Unit
from models.ratings import Catalogue, RatingScale
from tasks.guard import guarded
from tasks.item_files import read_items
from tasks.paths import home_path
from tasks.preferences import PreferenceTable, read_preferences
from tasks.preferences_source import PreferencesSource
from tasks.rating_files import RatingsSource, read_ratings
from tasks.sample import read_sample
from tasks.table import RatingTable
from tasks.unstored import unstored_task


@dataclass(frozen=True, repr=False)
class Loaded:
    """What was read, not yet validated."""

    table: RatingTable
    scale: RatingScale
    catalogue: Catalogue
    preferences: PreferenceTable | None = None

    def __repr__(self) -> str:
        return "<loaded, not validated>"


@guarded("Reading the ratings")
def load(
    source: RatingsSource | None,
    items: str | None,
    declared_scale: RatingScale | None,
    preferences: PreferencesSource | None = None,
    unit: Unit = "rating",
) -> Loaded:
    """Read the ratings (None: the sample), the items, and what people asked for (None: nobody was asked).

    Raises:
      SpecError: a file is not what it should be, or the scale is neither known nor declared.
      EnvironmentFault: a file cannot be read.
    """
    catalogue = read_items(home_path(items)) if items else None
    asked = read_preferences(preferences, unit) if preferences else None
    if source is None:
        scale, table, published = read_sample()
        return Loaded(table, declared_scale or scale, catalogue or published, asked)
    format_, table = read_ratings(source)
    known = declared_scale or format_.scale
    if known is None:
        raise SpecError(
            f"the scale of {source.path} is not known, and Jali does not measure it: a measured bound is itself a "
            "leak. Declare it, for example with --scale 1:5:1."
        )
    if catalogue is None:
        listed = format_.catalogue
        catalogue = Catalogue.of_items(list(listed or table.item_labels), public=listed is not None)
    return Loaded(table, known, catalogue, asked)


load_task = unstored_task(load, "load", spends_nothing=True)
