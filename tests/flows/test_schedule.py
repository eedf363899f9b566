from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from flows import schedule_command
from flows.job import Job, candidates, make_job
from flows.run import bill, run
from flows.schedule import budget_lines, noise_lines, parameters_of, scheduled_job, timing_of, variables_of
from flows.schedule_command import Asked, _changed, schedule
from models.errors import SpecError
from models.privacy.budget import Budget
from tasks import deployments
from tasks.deployments import absolute, in_words, next_times, worker_environment
from tasks.ledger import Ledger
from tasks.state import State


def config(text: str) -> str:
    Path("jali.yaml").write_text(text)
    return "jali.yaml"


def with_ratings(more: str = "") -> str:
    Path("films.csv").write_text("user,item,rating\na,b,4\n")
    return config(f"ratings: films.csv\nscale: '1:5:1'\n{more}")


@pytest.mark.parametrize(
    ("every", "interval"),
    [
        ("5s", timedelta(seconds=5)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("366d", timedelta(days=366)),
        ("1d", timedelta(days=1)),
    ],
)
def test_an_interval_is_a_number_and_a_unit(every: str, interval: timedelta) -> None:
    timing = timing_of(None, None, every)
    assert isinstance(timing, IntervalSchedule)
    assert timing.interval == interval


@pytest.mark.parametrize(
    "every",
    ["5", "m", "0m", "-5m", "5 m", "5min", "1.5h", "1w", "", "99999999d", "5m\n", "367d", "999999d", "\u0665m"],
)
def test_a_typo_in_an_interval_is_said_with_an_example(every: str) -> None:
    with pytest.raises(SpecError, match=r"--every takes a number .* such as --every 5m"):
        timing_of(None, None, every)


def test_a_cron_line_is_kept_as_written_and_fires_in_its_timezone() -> None:
    timing = timing_of("0 3 * * *", "Europe/Vienna", None)
    assert in_words(timing) == "0 3 * * * (Europe/Vienna)"
    assert [moment.hour for moment in next_times(timing)] == [3, 3, 3]
    assert in_words(timing_of(" 0   3 * * mon", None, None)) == "0 3 * * mon (UTC)"


@pytest.mark.parametrize(
    ("cron", "field"),
    [
        ("61 3 * * *", "'61' for the minute"),
        ("0 25 * * *", "'25' for the hour"),
        ("0 3 32 * *", "'32' for the day of the month"),
        ("0 3 * jam *", "'jam' for the month"),
        ("0 3 * * funday", "'funday' for the day of the week"),
        ("x 3 * * *", "'x' for the minute"),
        ("R R * * *", "'R' for the minute"),
        ("*/90 * * * *", "'\\*/90' for the minute"),
        ("0 */25 * * *", "'\\*/25' for the hour"),
        ("0 3 1-5/32 * *", "'1-5/32' for the day of the month"),
        ("* * * * */8", "'\\*/8' for the day of the week"),
        ("5-1 * * * *", "'5-1' for the minute"),
        ("0 1,22-2 * * *", "'1,22-2' for the hour"),
        ("\u0663 3 * * *", "for the minute"),  # three, in Arabic
        ("*/\u0663 3 * * *", "for the minute"),
        ("0 3 * *", "five fields"),
        ("@daily", "five fields"),
        ("*/5 * * * * *", "five fields"),
        ("", "five fields"),
    ],
)
def test_a_typo_in_a_cron_line_is_said_by_the_field_it_is_in(cron: str, field: str) -> None:
    with pytest.raises(SpecError, match=field) as error:
        timing_of(cron, None, None)
    assert '--cron "0 3 * * *"' in str(error.value)


@pytest.mark.parametrize("cron", ["*/60 */24 */31 */12 */7", "0-59/5 22-23,0-2 1,15 jan-mar mon-fri", "0 3 l * *"])
def test_what_cron_knows_stays_possible(cron: str) -> None:
    assert in_words(timing_of(cron, None, None)) == f"{cron} (UTC)"


@pytest.mark.parametrize("timezone", ["Europe/Wien", "utc+1", "localtime", "Europe", "../etc", "a" * 300, "\0"])
def test_an_unknown_timezone_is_one_sentence(timezone: str) -> None:
    with pytest.raises(SpecError, match=r"--timezone .* is not known. For example"):
        timing_of("0 3 * * *", timezone, None)


def test_a_day_that_never_comes_is_refused() -> None:
    with pytest.raises(SpecError, match="never comes"):
        timing_of("0 3 31 2 *", None, None)


@pytest.mark.parametrize(("cron", "every"), [(None, None), ("0 3 * * *", "5m")])
def test_a_schedule_has_one_timing(cron: str | None, every: str | None) -> None:
    with pytest.raises(SpecError, match="--cron or --every"):
        timing_of(cron, None, every)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(every="5m"),
        Asked(promote=True),
        Asked(config="jali.yaml", pause="films"),
        Asked(pause="films", remove="films"),
        Asked(listing=True, resume="films"),
        Asked(listing=True, work=True),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_server_starts(asked: Asked, state: State) -> None:
    with pytest.raises(SpecError):
        schedule(asked, state)


ONE = deployments.Scheduled("films", "every day", False, False, ())


@pytest.mark.parametrize(
    ("asked", "found", "is_ours", "says", "works"),
    [
        (Asked(), [], True, "Nothing is scheduled", False),
        (Asked(), [ONE], True, "films", True),
        (Asked(), [ONE], False, "is at work in this folder", False),
        (Asked(listing=True), [ONE], True, "Nobody is at work here", False),
        (Asked(listing=True), [ONE], False, "is at work in this folder", False),
        (Asked(work=True), [], False, "Nothing is scheduled", True),
    ],
)
def test_who_looks_at_the_schedules_is_told_who_runs_them(
    asked: Asked,
    found: list[deployments.Scheduled],
    is_ours: bool,
    says: str,
    works: bool,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = []
    monkeypatch.setattr(schedule_command, "schedule_server", lambda state: nullcontext((lambda: None, is_ours)))
    monkeypatch.setattr(schedule_command, "asks_own_server", lambda state: True)
    monkeypatch.setattr(schedule_command, "_work", lambda state, *, is_ours: begun.append(state))
    monkeypatch.setattr(deployments, "scheduled", lambda: found)
    schedule(asked, state)
    assert says in capsys.readouterr().out
    assert bool(begun) == works


def test_scheduled_runs_are_batches_unless_the_configuration_says_otherwise(state: State) -> None:
    job = scheduled_job(config("source: sample"), None)
    assert job.batch is not None
    assert job.recommenders == ("pdp-histogram",)
    assert scheduled_job(config("batch: {corrections: true}"), None).batch_kind == "corrected"
    assert scheduled_job(config("batch: false"), None).batch is None


@pytest.mark.parametrize("text", ["recommenders: pmf", "recommenders: [pmf, pdp-histogram]", "privacy: {unit: user}"])
def test_what_cannot_be_released_in_batches_is_refused_with_the_way_out(text: str, state: State) -> None:
    with pytest.raises(SpecError, match=r"a schedule releases batches.*batch: false"):
        scheduled_job(config(text), None)


def test_what_is_wrong_in_any_case_is_said_as_it_is(state: State) -> None:
    with pytest.raises(SpecError) as error:
        scheduled_job(config("folds: 1"), None)
    assert "batches" not in str(error.value)


def test_paths_mean_the_same_in_every_folder_and_the_name_stays(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("items.csv").write_text("item,title,genres\nb,B,x\n")
    job = scheduled_job(with_ratings("items: ~/items.csv\nreport: r.json\n"), None)
    assert job.source == "films.csv"
    assert job.ratings is not None
    assert (job.ratings.path, job.items, job.report) == tuple(
        str(tmp_path / name) for name in ("films.csv", "items.csv", "r.json")
    )


def test_an_address_with_variables_is_kept_as_it_is(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    address = "postgresql+psycopg://me:${PASSWORD}@host/shop"
    text = f"ratings: {{path: '{address}', table: ratings}}\nscale: '1:5:1'\n"
    job = scheduled_job(config(text), None)
    assert job.ratings is not None
    assert job.ratings.path == address
    assert variables_of(job) == ["PASSWORD"]


def test_a_password_in_the_configuration_is_refused_before_anything_is_stored(state: State) -> None:
    text = "ratings: {path: 'postgresql://me:hunter2@host/shop', table: ratings}\nscale: '1:5:1'\n"
    with pytest.raises(SpecError) as error:
        scheduled_job(config(text), None)
    assert "hunter2" not in str(error.value)


def test_a_checksum_of_a_file_that_changes_is_refused(state: State) -> None:
    Path("films.csv").write_text("user,item,rating\na,b,4\n")
    text = f"ratings: {{path: films.csv, checksum: 'md5:{'0' * 32}'}}\nscale: '1:5:1'\n"
    with pytest.raises(SpecError, match="checksum"):
        scheduled_job(config(text), None)


@pytest.mark.parametrize("text", ["batch: false", "publish: false"])
def test_promotion_needs_one_recommender_that_is_published(text: str, state: State) -> None:
    with pytest.raises(SpecError, match="--promote"):
        scheduled_job(config(text), None, promote=True)


POLICY = (
    "batch: false\nprivacy: {policy: {conservative: .5, moderate: .3}, metrics: 0.01}\nsettings: {pmf: {n_factors: 3}}"
)
ASKED = "privacy: {preferences: {path: films.csv, default: .1, cap: 1, levels: {low: .1}}}\n"


@pytest.mark.parametrize("more", ["", POLICY, ASKED, "batch: {corrections: true}"])
def test_what_prefect_stores_fits_its_form_and_is_the_job_again(more: str, state: State) -> None:
    job = scheduled_job(with_ratings(more), None)
    stored = json.loads(json.dumps(parameters_of(job, promote=False)))
    validate(stored, parameter_schema(run).model_dump_for_openapi(), raise_on_error=True)
    again = run.validate_parameters(stored)
    assert again == {"job": job, "promote": False}
    assert isinstance(again["job"], Job)


def test_every_field_of_the_form_says_what_it_is() -> None:
    definitions = parameter_schema(run).model_dump_for_openapi()["definitions"]
    told = {"Job", "Privacy", "Batches"}
    silent = [
        f"{name}.{field}"
        for name in told
        for field, schema in definitions[name]["properties"].items()
        if "description" not in schema and "$ref" not in schema
    ]
    assert silent == []


@pytest.mark.parametrize(("most", "says"), [(2.5, "2 runs"), (1, "one run"), (0.5, "no run")])
def test_a_schedule_that_pays_anew_says_how_long_its_budget_lasts(most: float, says: str, state: State) -> None:
    job = make_job({"source": "films", "recommenders": "pdp-histogram"})
    ledger = Ledger(state)
    assert budget_lines(job, ledger) == []
    ledger.set_budget("films", Budget(epsilon=most))
    (line,) = budget_lines(job, ledger)
    assert f"has room for {says};" in line
    n_rows = len(ledger.history())
    assert n_rows == 1  # nothing was reserved


def test_batches_never_use_a_budget_up(state: State) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=1))
    job = make_job({"source": "films", "recommenders": "pdp-histogram", "batch": True})
    for candidate_bill in [bill(job, candidate) for candidate in candidates(job)]:
        ledger.reserve([candidate_bill])
    assert budget_lines(job, ledger) == []


@pytest.mark.parametrize(
    ("cron", "every", "says"),
    [
        ("0 3 * * *", None, "About 30 batches in 30 days, .* 5.5 times"),
        ("0 3 * * mon", None, "About 4 batches .* 2.0 times"),
        ("* * * * *", None, "About 43,200 batches .* 207.8 times"),
        (None, "30s", "About 86,400 batches .* 293.9 times"),
    ],
)
def test_a_schedule_of_batches_says_how_their_noise_adds_up(
    cron: str | None, every: str | None, says: str, state: State
) -> None:
    (line,) = noise_lines(scheduled_job(with_ratings(), None), timing_of(cron, None, every))
    assert re.search(says, line)


@pytest.mark.parametrize(
    ("cron", "every", "more"),
    [
        (None, "30d", ""),
        ("0 3 29 2 *", None, ""),
        (None, "5m", "batch: false\n"),
        (None, "5m", "publish: false\n"),
    ],
)
def test_a_rare_schedule_and_one_without_batches_say_nothing_of_noise(
    cron: str | None, every: str | None, more: str, state: State
) -> None:
    assert noise_lines(scheduled_job(with_ratings(more), None), timing_of(cron, None, every)) == []


def test_a_worker_finds_what_is_here_and_no_password_is_stored(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, missing = worker_environment(state)
    assert environment["JALI_LEDGER_URL"] == f"sqlite:///{state.folder / 'ledger.db'}"
    assert environment["MLFLOW_TRACKING_URI"] == state.local_tracking_uri
    assert missing == []
    monkeypatch.setenv("JALI_LEDGER_URL", "postgresql+psycopg://me:hunter2@host/ledger")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example?token=hunter2")
    environment, missing = worker_environment(state)
    assert missing == ["MLFLOW_TRACKING_URI", "JALI_LEDGER_URL"]
    assert "hunter2" not in str(environment)


def test_addresses_are_made_absolute(state: State, tmp_path: Path) -> None:
    assert absolute("sqlite:///ledger.db") == f"sqlite:///{tmp_path / 'ledger.db'}"
    assert absolute("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"
    assert absolute("https://mlflow.example:5000") == "https://mlflow.example:5000"
    assert absolute("mlruns") == absolute("file:mlruns") == str(tmp_path / "mlruns")
    assert absolute("file:///tmp/mlruns") == "file:///tmp/mlruns"


def test_a_cron_schedule_is_prefects_own() -> None:
    assert isinstance(timing_of("*/5 * * * *", None, None), CronSchedule)


def test_what_a_removed_schedule_left_unfinished_is_removed_with_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "remove", lambda source: None)
    monkeypatch.setattr(deployments, "pause", lambda source: None)
    kept = state.folder / "folds" / "films"
    kept.mkdir(parents=True)
    _changed(Asked(pause="films"), state)
    assert kept.exists()
    _changed(Asked(remove="films"), state)
    assert not kept.exists()
