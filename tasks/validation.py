"""Are these ratings what they should be? Great Expectations answers; only its verdicts leave this module."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from expectations.suites import Minimums, load_suite
from models.errors import ValidationFailed
from models.privacy.specification import MOST_EPSILON
from models.ratings import Ratings
from tasks.guard import guarded
from tasks.loading import Loaded
from tasks.preferences import PreferenceTable
from tasks.table import RatingTable
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult

LINES_SHOWN = 10


@guarded("Validation")
def validate(loaded: Loaded, minimums: Minimums) -> Ratings:
    """The table as Ratings, if it meets every expectation.

    Raises:
      ValidationFailed: one sentence per failed rule; none quotes a value, a user or a count.
    """
    parameters = _parameters(loaded, minimums)
    failed = [
        _sentence(result.expectation_config, parameters)
        for result in _results(loaded, parameters, "BOOLEAN_ONLY")
        if not result.success
    ]
    if failed:
        raise ValidationFailed([*failed, "See which lines with `jali validate` and the same arguments."])
    return _accepted(loaded)


def explain(loaded: Loaded, minimums: Minimums) -> list[str]:
    """The failed rules with the numbers of the data rows that break them: for the owner's eyes, not for any store."""
    parameters = _parameters(loaded, minimums)
    lines = []
    for result in _results(loaded, parameters, {"result_format": "COMPLETE", "include_unexpected_rows": False}):
        if result.success:
            continue
        is_per_row = result.expectation_config.meta["rule"] != "ratings-per-user"
        rows = sorted(result.result.get("unexpected_index_list") or []) if is_per_row else []
        shown = ", ".join(str(row + 1) for row in rows[:LINES_SHOWN])
        more = f" and {len(rows) - LINES_SHOWN} more" if len(rows) > LINES_SHOWN else ""
        sentence = _sentence(result.expectation_config, parameters)
        whose = " of the preferences" if "preference" in result.expectation_config.meta["rule"] else ""
        lines.append(f"{sentence} Data rows{whose}: {shown}{more}." if shown else sentence)
    return lines


def _parameters(loaded: Loaded, minimums: Minimums) -> dict[str, Any]:
    scale = loaded.scale
    return {
        "scale": str(scale),
        # As the ratings are held, in single precision: 3.3 is nearest to 3.3 there too.
        "low": float(np.float32(scale.low)),
        "high": float(np.float32(scale.high)),
        "levels": scale.levels.astype(np.float32).astype(np.float64).tolist(),
        "last_item": len(loaded.catalogue) - 1,
        "most_epsilon": MOST_EPSILON,
        **minimums.model_dump(),
    }


def _results(loaded: Loaded, parameters: dict[str, Any], result_format: Any) -> list[Any]:
    import great_expectations as gx  # seconds to import

    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.ERROR)  # it sets its own to INFO
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("ratings")
    frame = _frame(loaded)
    per_user = pd.DataFrame({"n_ratings": frame["user"].value_counts()})
    results: list[Any] = []
    frames = {"ratings": frame, "users": per_user}
    if loaded.preferences is not None:
        frames["preferences"] = _preference_frame(loaded.preferences, loaded.table)
    for suite_name, data in frames.items():
        asset = source.add_dataframe_asset(suite_name)
        batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": data})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own making; a verdict is all that is wanted here
            # Not by a ValidationDefinition: it would put the outcome into a store, and take half as long again.
            outcome: ExpectationSuiteValidationResult = batch.validate(
                load_suite(suite_name), expectation_parameters=parameters, result_format=result_format
            )
        results += outcome.results
    return results


def _sentence(config: Any, parameters: dict[str, Any]) -> str:
    return f"[{config.meta['rule']}] {config.notes.format(**parameters)}"


def _frame(loaded: Loaded) -> pd.DataFrame:
    """The table as the suites see it: user and item as codes, null where missing, item negative where unknown.

    `entry` is the rating as it stood, `rating` its number, `text` what was no number.
    """
    table = loaded.table
    item = _catalogue_rows(loaded)[table.items].astype(np.float64)
    item[table.items < 0] = np.nan
    number = pd.to_numeric(pd.Series(table.ratings), errors="coerce").astype(np.float32).astype(np.float64)
    entry = pd.Series(table.ratings, dtype=object if table.ratings.dtype == object else None)
    text = entry.where(number.isna() & entry.notna()).astype(object)
    return pd.DataFrame(
        {"user": _codes_or_null(table.users), "item": item, "entry": entry, "rating": number, "text": text}
    )


def _preference_frame(table: PreferenceTable, ratings: RatingTable) -> pd.DataFrame:
    """The preferences as their suite sees them: codes, null where missing; one item for all where none are named."""
    number = pd.Series(table.epsilon)
    asked = pd.Series(table.asked, dtype=object if table.asked.dtype == object else None)
    item = np.zeros(len(number)) if table.items is None else _codes_or_null(table.items)
    unknown = asked.where(number.isna() & asked.notna()).astype(object)
    return pd.DataFrame(
        {
            "user": _codes_or_null(table.users),
            "item": item,
            "asked": asked,
            "epsilon": number,
            "unknown": unknown,
            "rated": table.concerns(ratings).astype(np.float64),
        }
    )


def _codes_or_null(codes: np.ndarray) -> np.ndarray:
    values = codes.astype(np.float64)
    values[codes < 0] = np.nan
    return values


def _catalogue_rows(loaded: Loaded) -> np.ndarray:
    """For each item label of the table its row in the catalogue, a negative number of its own where it has none.

    One more entry stands for code -1, no label.
    """
    row_of, labels = loaded.catalogue.row_of, loaded.table.item_labels
    return np.array([*(row_of.get(label, -2 - at) for at, label in enumerate(labels)), -1], np.int32)


def _accepted(loaded: Loaded) -> Ratings:
    table = loaded.table
    return Ratings(
        users=table.users,
        items=_catalogue_rows(loaded)[table.items],
        values=table.ratings,
        user_labels=table.user_labels,
        catalogue=loaded.catalogue,
        scale=loaded.scale,
        own_epsilon=None if loaded.preferences is None else loaded.preferences.own_epsilon(table),
    )


validate_task = unstored_task(validate, "validate")
