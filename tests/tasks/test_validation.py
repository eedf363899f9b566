from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from expectations import suites
from expectations.suites import Minimums
from models.errors import ValidationFailed
from models.ratings import Catalogue, RatingScale
from tasks.loading import Loaded
from tasks.table import RatingTable
from tasks.validation import explain, validate

GOOD = [("ann", "x", "5"), ("ann", "y", "3"), ("bob", "x", "1"), ("bob", "y", "2.0"), ("cat", "x", "4")]
CATALOGUE = Catalogue.of_items(["x", "y", "z"], public=True)


def loaded(lines: list[tuple[str | None, str | None, str | None]], scale: str = "1:5:1") -> Loaded:
    columns = [
        pa.chunked_array([pa.array([line[at] for line in lines], pa.string()).dictionary_encode()]) for at in range(3)
    ]
    return Loaded(RatingTable.of_columns(*columns), RatingScale.parse(scale), CATALOGUE)


def test_good_ratings_become_ratings() -> None:
    ratings = validate(loaded(GOOD), Minimums())
    assert [ratings.user_labels[user] for user in ratings.users] == [line[0] for line in GOOD]
    assert [ratings.catalogue.items[item] for item in ratings.items] == [line[1] for line in GOOD]
    assert ratings.values.tolist() == [5, 3, 1, 2, 4]
    assert ratings.values.dtype == np.float32


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ((None, "x", "5"), {"user-present"}),
        (("dan", None, "5"), {"item-present"}),
        (("dan", "x", None), {"rating-present"}),
        (("dan", "x", "NaN"), {"rating-present"}),
        (("dan", "x", "good"), {"rating-type"}),
        (("dan", "x", "0_3"), {"rating-type"}),
        (("dan", "x", "٣"), {"rating-type"}),
        (("dan", "x", "6"), {"rating-range", "rating-step"}),
        (("dan", "x", "0"), {"rating-range", "rating-step"}),
        (("dan", "x", "inf"), {"rating-range", "rating-step"}),
        (("dan", "x", "3.5"), {"rating-step"}),
        (("ann", "x", "5"), {"one-rating-per-pair"}),
        (("dan", "elsewhere", "5"), {"item-in-catalogue"}),
    ],
)
def test_one_bad_line_breaks_its_rule_and_no_other(line: tuple[str | None, ...], rules: set[str]) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        validate(loaded([*GOOD, line]), Minimums())  # type: ignore[list-item]
    *sentences, advice = refusal.value.rules
    assert {sentence.split("]")[0].removeprefix("[") for sentence in sentences} == rules
    assert "jali validate" in advice
    assert all(sentence.endswith(".") for sentence in sentences)


def test_half_stars_pass_where_they_are_declared() -> None:
    assert len(validate(loaded([*GOOD, ("dan", "x", "3.5")], "0.5:5:0.5"), Minimums())) == 6


@pytest.mark.parametrize("scale", ["0:1:0.1", "0:10:0.1", "1:5:0.2", "0:5:0.05", "1:5:0.25", "-10:10:0.5"])
def test_every_step_of_a_decimal_scale_passes_as_a_file_spells_it(scale: str) -> None:
    low, _, step = (float(part) for part in scale.split(":"))
    levels = RatingScale.parse(scale).levels
    spelled = [f"{low + at * step:.2f}" for at in range(len(levels))]
    lines = [(f"user{at}", "xy"[at % 2], text) for at, text in enumerate(spelled)]
    assert len(validate(loaded(lines, scale), Minimums())) == len(levels)


@pytest.mark.parametrize(
    ("lines", "minimums", "rule"),
    [
        ([("ann", "x", "5"), ("ann", "y", "5")], {}, "enough-users"),
        ([("ann", "x", "5"), ("bob", "x", "5")], {}, "enough-items"),
        (GOOD, {"min_ratings": 6}, "enough-ratings"),
        (GOOD, {"min_ratings_per_user": 2}, "ratings-per-user"),
    ],
)
def test_too_little_is_refused(lines: list, minimums: dict[str, int], rule: str) -> None:
    with pytest.raises(ValidationFailed, match=rule):
        validate(loaded(lines), Minimums(**minimums))


def test_no_sentence_quotes_a_user_an_item_a_value_or_a_count() -> None:
    bad = [("secret-user", "secret-item", "77.25"), ("secret-user", "secret-item", "77.25")]
    with pytest.raises(ValidationFailed) as refusal:
        validate(loaded([*GOOD, *bad]), Minimums())
    text = str(refusal.value)
    assert len(refusal.value.rules) >= 4
    for secret in ("secret", "77", "7 ", "2 rows"):
        assert secret not in text


def test_the_owner_can_see_which_rows_are_bad() -> None:
    lines = explain(loaded([*GOOD, ("dan", "x", "6"), ("dan", "x", "3")]), Minimums())
    assert any(line.startswith("[rating-range]") and line.endswith("Data rows: 6.") for line in lines)
    assert any(line.startswith("[one-rating-per-pair]") and "6, 7" in line for line in lines)
    assert explain(loaded(GOOD), Minimums()) == []
    (per_user,) = explain(loaded(GOOD), Minimums(min_ratings_per_user=2))
    assert "Data rows" not in per_user  # the rule is about users: there is no row to show


def test_text_does_not_hide_what_else_is_wrong_and_has_its_rows() -> None:
    bad: list[tuple[str | None, str | None, str | None]] = [("dan", "x", "good"), ("dan", "y", "9"), ("eve", "x", None)]
    lines = explain(loaded([*GOOD, *bad]), Minimums())
    assert [line.split("]")[0] for line in lines] == [
        "[rating-present",
        "[rating-type",
        "[rating-range",
        "[rating-step",
    ]
    assert [line.split("Data rows: ")[1] for line in lines] == ["8.", "6.", "7.", "7."]


def test_items_outside_the_catalogue_are_not_taken_for_one_another() -> None:
    elsewhere = [(user, f"other-{item}", "3") for user in ("ann", "bob") for item in range(3)]
    lines = explain(loaded(elsewhere), Minimums())
    assert [line.split("]")[0] for line in lines] == ["[item-in-catalogue"]


def test_every_expectation_names_its_rule_and_has_a_sentence() -> None:
    for file in Path(suites.FOLDER).glob("*.json"):
        for expectation in json.loads(file.read_text())["expectations"]:
            assert expectation["meta"]["rule"]
            assert expectation["notes"].endswith(".")
            assert "id" not in expectation
