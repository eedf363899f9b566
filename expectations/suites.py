"""Load a suite from its JSON file.

In a suite, `meta.rule` names the rule and `notes` is the sentence shown when it fails. Both may use
the parameters in braces that the run passes in: `low`, `high`, `levels`, `last_item`, `min_ratings`,
`min_users`, `min_items`, `min_ratings_per_user`, `most_epsilon` and `scale`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

FOLDER = Path(__file__).parent


class Minimums(BaseModel, frozen=True, extra="forbid"):
    """The least that a run accepts; parameters of the suites."""

    min_ratings: PositiveInt = 2
    min_users: PositiveInt = 2
    min_items: PositiveInt = 2
    min_ratings_per_user: NonNegativeInt = 1


def load_suite(name: str) -> ExpectationSuite:
    """The suite in `NAME.json`."""
    from great_expectations import ExpectationSuite  # seconds to import: only when validating

    return ExpectationSuite(**json.loads((FOLDER / f"{name}.json").read_text()))
