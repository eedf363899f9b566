"""What a source of ratings may be called: budgets, experiments and registered models hang on the name."""

from __future__ import annotations

import re

from models.errors import SpecError


def source_name(value: str) -> str:
    """`value`, if a source may be called so.

    Raises:
      ValueError: it may not.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9 ._+-]{0,98}[A-Za-z0-9_+-])?", value):
        raise ValueError("a source is called by letters, digits, blanks and . _ + -; give it a name with --source")
    if value == "audits" or value.endswith((".releases", ".serving", ".papers", ".audits")):
        raise ValueError(
            "audits and names ending in .releases, .serving, .papers and .audits are Jali's own; give another with "
            "--source"
        )
    return value


def require_source_name(value: str) -> str:
    """The same for whoever typed it.

    Raises:
      SpecError: no source is called so.
    """
    try:
        return source_name(value)
    except ValueError as error:
        raise SpecError(f"{error}.") from None


def of_a_source(recommender: str, told: dict[str, str]) -> tuple[str, dict[str, str]]:
    """`SOURCE.RECOMMENDER`, as the registry calls it, taken apart; `told` is what else was told, by name."""
    from models.index import RECOMMENDERS  # a second to import

    source, _, name = recommender.rpartition(".")
    if not source or name not in RECOMMENDERS or told.get("source", source) != source:
        return recommender, told
    return name, {**told, "source": source}
