from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.job import candidates, make_job, read_config
from flows.run import bill
from models.errors import SpecError
from models.privacy.accounting import as_written

ROOT = Path(__file__).parents[2]


def test_without_settings_it_is_the_sample() -> None:
    job = make_job({})
    assert (job.source, job.ratings, job.folds, job.publish) == ("sample", None, 10, True)
    assert [candidate.label for candidate in candidates(job)] == [
        "pmf (no privacy)",
        "dp-pmf ε=1",
        "pdp-pmf ε=1",
        "pdp-histogram ε=1",
    ]


def test_by_default_those_are_run_that_can_protect_the_unit() -> None:
    assert make_job({"privacy": {"unit": "user"}}).recommenders == ("pmf", "pdp-histogram")
    with pytest.raises(SpecError, match="dp-pmf protects one rating"):
        make_job({"privacy": {"unit": "user"}, "recommenders": "dp-pmf"})


def test_a_source_is_called_like_its_file(tmp_path: Path) -> None:
    (tmp_path / "r.csv").touch()
    assert make_job({"ratings": str(tmp_path / "r.csv"), "scale": "1:5:1"}).source == "r.csv"
    assert make_job({"ratings": {"path": str(tmp_path / "r.csv")}, "source": "films"}).source == "films"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon: this should be greater than or equal to 0.000001"),
        ({"privacy": {"epsilon": -1}}, "privacy.epsilon: this should be greater than or equal to 0.000001"),
        ({"privacy": {"epsilon": "nan"}}, "privacy.epsilon: this should be less than or equal to 1000"),
        ({"privacy": {"epsilon": "much"}}, "privacy.epsilon: this should be a valid number"),
        ({"privacy": {"epsilon": 1, "policy": "default"}}, "either one epsilon for all or a policy"),
        ({"privacy": {"unit": "user", "policy": "default"}}, "speaks of single ratings"),
        ({"privacy": {"unit": "item"}}, "privacy.unit"),
        ({"privacy": {"delta": 1}}, "privacy.delta"),
        ({"privacy": {"metrics": 0}}, "privacy.metrics.epsilon: this should be greater than or equal to 0.000001"),
        ({"privacy": {"metrics": -1}}, "privacy.metrics.epsilon: this should be greater than or equal to 0.000001"),
        ({"privacy": {"metrics": "nan"}}, "privacy.metrics.epsilon: this should be less than or equal to 1000"),
        ({"privacy": {"metrics": 1001}}, "privacy.metrics.epsilon: this should be less than or equal to 1000"),
        ({"privacy": {"metrics": "much"}}, "privacy.metrics.epsilon: this should be a valid number"),
        ({"privacy": {"metrics": []}}, "privacy.metrics.epsilon"),
        ({"privacy": {"metrics": {"ratings_per_user": 2}}}, "privacy.metrics.epsilon: Field required"),
        ({"privacy": {"metrics": {"epsilon": 1, "ratings_per_user": 0}}}, "privacy.metrics.ratings_per_user"),
        ({"privacy": {"metrics": {"epsilon": 1, "share": 0.2}}}, "no setting privacy.metrics.share"),
        ({"privacy": {"metrics": 0.1}, "publish": False}, "this run releases nothing"),
        ({"privacy": {"metrics": 0.1}, "recommenders": "pmf"}, "this run releases nothing"),
        ({"privacy": {"metrics": 0.04, "policy": "default"}}, "take 0.4 of the own epsilon of whoever has the least"),
        ({"privacy": {"metrics": 0.06, "policy": "default", "fraction": 0.5}}, "together they may take 1"),
        ({"privacy": {"preferences": "asked.csv"}}, "who are not in the table, with --default-epsilon"),
        ({"privacy": {"preferences": {"path": "nope.csv", "default": 1, "cap": 1}}}, "nope.csv does not exist"),
        ({"privacy": {"policy": {"conservative": 0.9}}}, "add up to at most 1"),
        ({"folds": 1}, "folds: this should be greater than or equal to 2"),
        ({"folds": "ten"}, "folds"),
        ({"scale": "five"}, "LOW:HIGH:STEP"),
        ({"recommenders": "pmf,magic"}, "no recommender 'magic'"),
        ({"recommenders": "pmf,pmf"}, "every recommender once"),
        ({"recommenders": ""}, "no recommender ''"),
        ({"settings": {"pmf": {"factors": 3}}}, "no setting factors"),
        ({"settings": {"pmf": {"n_factors": 0}}}, "pmf: n_factors"),
        ({"recommenders": "pmf", "settings": {"pdp-histogram": {}}}, "not among the recommenders"),
        ({"ratings": "nope.csv"}, "nope.csv does not exist"),
        ({"items": "nope.csv"}, "nope.csv does not exist"),
        ({"ratings": "."}, "is a folder"),
        ({"source": "a/b"}, "give it a name with --source"),
        ({"source": "films "}, "give it a name with --source"),
        ({"source": "films.releases"}, "are Jali's"),
        ({"source": "films.serving"}, "are Jali's"),
        ({"settings": {"pdp-histogram": {"threshold": float("inf")}}}, "pdp-histogram: threshold"),
        ({"privacy": {"epsilon": 1e300}}, "less than or equal to 1000"),
        ({"spurce": "x"}, "no setting spurce"),
        ({"ratings": {"delimiter": ","}}, "path"),
        ({"ratings": 3}, "ratings"),
        ({"scale": "1:5:1e-320"}, "LOW:HIGH:STEP"),
        ({"scale": "1:1.001:1e-6"}, "LOW:HIGH:STEP"),
        ({"settings": {"pmf": {"precision": float("inf")}}}, "pmf: precision"),
        ({"settings": {"pmf": {"precision": 5e-324}}}, "pmf: precision"),
        ({"settings": {"pdp-histogram": {"item_variance": 1e308}}}, "pdp-histogram: item_variance"),
        ({"x" * 5000: 1}, "there is no setting 'xxx"),
        ({"epsilon": 0.5}, "epsilon is a setting of privacy: write `privacy: {epsilon: ...}`"),
        ({"folds": "9" * 5000}, "folds: "),
        ({"settings": {"x" * 5000: {}}}, "not among the recommenders"),
    ],
)
def test_a_wrong_setting_is_one_sentence_before_anything_starts(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refusal:
        make_job(config)
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_without_a_public_catalogue_the_promise_is_conditional_before_a_file_is_opened(tmp_path: Path) -> None:
    for name in ("r.csv", "items.csv", "u.data"):
        (tmp_path / name).touch()
    own: dict[str, Any] = {"ratings": str(tmp_path / "r.csv"), "scale": "1:5:1", "recommenders": "pdp-histogram"}
    verdicts = [
        candidates(make_job(config))[0].guarantee.verdict
        for config in (own, own | {"items": str(tmp_path / "items.csv")}, own | {"ratings": str(tmp_path / "u.data")})
    ]
    assert verdicts == ["conditional", "proven", "proven"]


def test_personalised_releases_share_everybodys_epsilon() -> None:
    _, *private = candidates(make_job({"privacy": {"policy": "default"}}))
    assert [candidate.specification.fraction for candidate in private] == [1 / 3] * 3
    assert [candidate.guarantee.epsilon for candidate in private] == pytest.approx([0.1 / 3, 0.393 / 3, 1 / 3])
    _, *half = candidates(make_job({"privacy": {"policy": "default", "fraction": 0.5}}))
    assert [candidate.guarantee.epsilon for candidate in half] == pytest.approx([0.05, 0.1965, 0.5])


def test_each_recommender_speaks_of_its_own_neighbours() -> None:
    relations = [candidate.guarantee.relation for candidate in candidates(make_job({}))]
    assert relations == [None, "replace_value", "replace_value", "add_or_remove"]


def test_what_was_asked_for_is_named_by_its_cap(tmp_path: Path) -> None:
    (tmp_path / "asked.csv").touch()
    preferences = {"path": str(tmp_path / "asked.csv"), "default": 0.2, "cap": 2}
    (_, histogram) = candidates(make_job({"privacy": {"preferences": preferences, "unit": "user"}}))
    assert histogram.label == "pdp-histogram user ε≤2"
    assert histogram.params["privacy.preferences.cap"] == "2.0"
    assert not any("asked.csv" in value for value in histogram.params.values())


def test_the_folds_raise_what_validation_demands() -> None:
    assert make_job({"folds": 7}).minimums.min_ratings == 7
    assert make_job({"validation": {"min_ratings": 100}}).minimums.min_ratings == 100


@pytest.mark.parametrize(
    "content",
    [
        "- a\n- b\n", "a: [", "\x00", "just words", "source: 2001-99-99\n", "folds: !!int x\n", "folds: !!int ''\n",
        "publish: !!bool x\n", "a: !!timestamp x\n", "a: " + "[" * 3000, 'source: "\\0"\n', 'source: "\\uD800"\n',
        "a: !!python/object/apply:os.getcwd []\n",
    ],
)  # fmt: skip
def test_a_configuration_that_is_none_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(SpecError, match=r"configuration .*c\.yaml"):
        read_config(str(tmp_path / "c.yaml"))
    with pytest.raises(SpecError, match=r"--ratings r\.csv\.gz"):
        read_config("r.csv.gz")
    for nothing in (str(tmp_path / "missing.yaml"), "x" * 5000, "/dev/zero"):
        with pytest.raises(SpecError, match=r"does not exist|is a device"):
            read_config(nothing)


def test_a_number_with_a_leading_zero_is_decimal(tmp_path: Path) -> None:
    for text, folds in (("010", 10), ("08", 8)):
        (tmp_path / "c.yaml").write_text(f"folds: {text}\n")
        assert make_job(read_config(str(tmp_path / "c.yaml"))).folds == folds


def test_the_example_shows_every_setting_and_is_the_default() -> None:
    example = yaml.safe_load((ROOT / "docs" / "jali.example.yaml").read_text())
    ours = {"settings": example["settings"], "named": True}  # it names them all
    assert make_job(example).model_dump() == make_job({}).model_dump() | ours

    def names(model: type) -> set[str]:
        return set(model.model_fields)  # type: ignore[attr-defined]

    from expectations.suites import Minimums
    from flows.job import Job, Privacy
    from models.index import RECOMMENDERS

    text = (ROOT / "docs" / "jali.example.yaml").read_text()
    from tasks.preferences_source import PreferencesSource
    from tasks.rating_files import RatingsSource

    assert all(name in text for name in names(Job) | names(Privacy) | names(Minimums))
    assert all(name in text for name in names(RatingsSource) | names(PreferencesSource))
    for name, kind in RECOMMENDERS.items():
        assert set(example["settings"][name]) == names(kind)


def test_metrics_are_a_second_charge_of_every_release_and_of_nothing_else() -> None:
    baseline, *private = candidates(make_job({"privacy": {"metrics": 0.1}}))
    assert (baseline.metrics, baseline.guarantees, baseline.epsilon) == (None, [baseline.guarantee], 0)
    for candidate in private:
        assert candidate.epsilon == 1.1
        promise = candidate.metrics_guarantee
        assert promise is not None
        assert (promise.relation, promise.epsilon, promise.verdict) == (candidate.guarantee.relation, 0.1, "proven")
        assert candidate.params["privacy.metrics.epsilon"] == "0.1"
        assert candidate.params["privacy.metrics.ratings_per_user"] == "5"
    assert all(candidate.metrics is None for candidate in candidates(make_job({})))


def test_metrics_are_no_better_than_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "r.csv").touch()
    told = {"ratings": str(tmp_path / "r.csv"), "scale": "1:5:1", "recommenders": "pdp-histogram"}
    (chosen,) = candidates(make_job(told | {"privacy": {"metrics": 0.1}}))
    assert chosen.metrics_guarantee is not None
    assert chosen.metrics_guarantee.verdict == "conditional"


@pytest.mark.parametrize("recommenders", ["pdp-histogram", "dp-pmf,pdp-pmf,pdp-histogram"])
@pytest.mark.parametrize("metrics", [0.01, 0.0123, 0.033, 1e-6])
def test_releases_and_their_metrics_share_everybodys_epsilon(recommenders: str, metrics: float) -> None:
    """Nobody is charged more than was asked for: as written, and as floating point has it."""
    told = {"privacy": {"policy": "default", "metrics": metrics}, "recommenders": recommenders}
    job = make_job(told)
    chosen = candidates(job)
    shares = [charge.fraction or 0 for candidate in chosen for charge in bill(job, candidate)]
    assert len(shares) == 2 * len(chosen)
    assert sum(map(as_written, shares)) <= 1
    assert sum(shares) == pytest.approx(1)
    for own in (0.1, 0.17, 1.0):
        paid = [Fraction(own * share * (1 - 2**-51)) for share in shares[::2]]
        assert sum(paid) + len(chosen) * Fraction(metrics) <= Fraction(own)


def test_half_of_everybodys_own_leaves_room_for_metrics_that_take_the_other_half() -> None:
    (chosen,) = candidates(
        make_job({"privacy": {"policy": "default", "fraction": 0.5, "metrics": 0.05}, "recommenders": "pdp-histogram"})
    )
    assert chosen.specification.fraction == 0.5


def test_metrics_are_refused_where_people_may_ask_for_less_than_they_cost(tmp_path: Path) -> None:
    (tmp_path / "asked.csv").touch()
    preferences = {"path": str(tmp_path / "asked.csv"), "default": 0.2, "cap": 2}
    with pytest.raises(SpecError, match="may ask for less than any such cost"):
        make_job({"privacy": {"preferences": preferences, "metrics": 0.1}})
    levels = {"path": preferences["path"], "default": 0.2, "levels": {"out": 0, "low": 0.2, "high": 1}}
    (chosen,) = candidates(
        make_job({"privacy": {"preferences": levels, "metrics": 0.1}, "recommenders": "pdp-histogram"})
    )
    assert chosen.specification.fraction == pytest.approx(0.5)
