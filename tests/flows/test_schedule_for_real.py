"""Schedules with a real Prefect server, and one that really fires."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Pending, Running, Scheduled

from flows.refusals import named_refusals
from flows.run import run
from flows.schedule import parameters_of, scheduled_job, timing_of
from flows.schedule_command import schedule_line
from models.errors import BudgetExceeded, SpecError
from tasks import deployments
from tasks.flow_runs import mark_killed
from tasks.prefect_access import password
from tasks.state import State
from tests.command import JALI, PRIVATE, clean_text, environment, privacy_of, processes_of, servers_of, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow


@pytest.fixture
def client(shared_prefect: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setenv("PREFECT_API_URL", shared_prefect)
    with temporary_settings({PREFECT_API_URL: shared_prefect}), get_client(sync_client=True) as found:
        yield found


@pytest.fixture
def films(state: State, client: SyncPrefectClient, tmp_path: Path) -> Iterator[Path]:
    """A folder with a configuration that is scheduled every night."""
    write_config(tmp_path)
    register("0 3 * * *")
    yield tmp_path
    deployments.remove("films")


def write_config(folder: Path) -> None:
    write_ratings(folder, made_up_ratings(n_users=30))
    more = "recommenders: [pdp-histogram]\nfolds: 2\n"
    (folder / "jali.yaml").write_text(f"source: films\nratings: films.csv\nitems: items.csv\nscale: '1:5:1'\n{more}")


def register(cron: str) -> None:
    job = scheduled_job("jali.yaml", None)
    deployments.register(run, "films", parameters_of(job, promote=False), timing_of(cron, None, None), here())


def here() -> State:
    return State(Path.cwd() / ".jali")


def test_a_source_has_one_schedule_which_is_replaced_paused_resumed_and_removed(films: Path) -> None:
    register("0 4 * * *")
    (one,) = deployments.scheduled(["films"])
    assert (one.when, one.is_paused, one.promotes) == ("0 4 * * * (UTC)", False, False)
    assert [moment.hour for moment in one.next_times] == [4, 4, 4]
    deployments.pause("films")
    assert deployments.scheduled(["films"])[0].is_paused
    deployments.resume("films")
    assert not deployments.scheduled(["films"])[0].is_paused
    with pytest.raises(SpecError, match=r"no schedule of books is known. There are films"):
        deployments.remove("books")


def test_a_schedule_of_another_folder_is_not_replaced_unheard(
    films: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    monkeypatch.chdir(other)
    write_config(other)
    with pytest.raises(SpecError, match=r"films is scheduled .* in another folder.* another name with --source"):
        register("0 4 * * *")
    (one,) = deployments.scheduled(["films"])
    assert one.when == "0 3 * * * (UTC)"
    deployments.remove("films")
    register("0 4 * * *")
    (one,) = deployments.scheduled(["films"])
    assert one.when == "0 4 * * * (UTC)"


def test_one_schedule_that_somebody_broke_in_prefect_hides_no_other(films: Path, client: SyncPrefectClient) -> None:
    (found,) = [one for one in client.read_deployments() if one.name == "films"]
    for broken in (IntervalSchedule(interval=timedelta(days=999_999)), CronSchedule(cron="0 3 31 2 *")):
        client._client.patch(
            f"/deployments/{found.id}", json={"schedules": [{"schedule": broken.model_dump(mode="json")}]}
        ).raise_for_status()
        (one,) = deployments.scheduled(["films"])
        assert one.next_times == ()
        assert schedule_line(one).endswith("; next never")


def test_a_deployment_runs_one_at_a_time_where_it_was_made_and_finds_its_addresses(
    films: Path, client: SyncPrefectClient
) -> None:
    (found,) = [one for one in client.read_deployments() if one.name == "films"]
    assert found.entrypoint == "flows.run.run"
    assert found.global_concurrency_limit is not None
    assert found.global_concurrency_limit.limit == 1
    assert found.concurrency_options is not None
    assert found.concurrency_options.collision_strategy == "CANCEL_NEW"
    assert found.job_variables["working_dir"] == str(films)
    assert found.job_variables["env"]["JALI_LEDGER_URL"] == f"sqlite:///{films / '.jali' / 'ledger.db'}"
    assert found.parameters["job"]["ratings"]["path"] == str(films / "films.csv")


def begun(client: SyncPrefectClient, state: Any) -> Any:
    (found,) = [one for one in client.read_deployments() if one.name == "films"]
    return client.create_flow_run_from_deployment(found.id, state=state)


def state_of(client: SyncPrefectClient, one: Any) -> Any:
    return client.read_flow_run(one.id).state


def test_a_run_that_was_killed_is_marked_by_the_next_and_none_that_is_alive_or_another_servers(
    films: Path, client: SyncPrefectClient, shared_prefect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = begun(client, Pending()), begun(client, Pending())
    for one in (dead, alive):
        client.set_flow_run_state(one.id, Running(), force=True)
    notes = here().folder / "flow-runs"
    notes.mkdir()
    (notes / str(dead.id)).write_text(shared_prefect)
    elsewhere = notes / str(uuid4())
    elsewhere.write_text("https://prefect.example/api")
    holding = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl; f = open({str(notes / str(alive.id))!r}, 'w'); fcntl.flock(f, 2); "
         "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with holding:
        assert holding.stdout is not None
        holding.stdout.readline()
        assert mark_killed(here(), "films") == 1
        holding.kill()
    assert (state_of(client, dead).name, state_of(client, dead).message) == ("Crashed", "killed; taken up by films")
    assert state_of(client, alive).type == StateType.RUNNING
    assert {note.name for note in notes.iterdir()} == {str(alive.id), elsewhere.name}
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", password(here()))  # and now the folder's own server is asked
    (notes / str(alive.id)).write_text("")
    assert mark_killed(here(), "films") == 1
    assert [note.name for note in notes.iterdir()] == [elsewhere.name]


def test_missed_runs_are_not_made_up_for_and_one_that_never_got_a_process_gives_its_turn_back(
    films: Path, client: SyncPrefectClient
) -> None:
    waiting = taken_by_a_worker(client)
    assert state_of(client, waiting).type == StateType.PENDING
    assert state_of(client, taken_by_a_worker(client)).type == StateType.CANCELLED
    for hours in (1, 2, 3):
        begun(client, Scheduled(scheduled_time=datetime.now(UTC) - timedelta(hours=hours)))
    later = begun(client, Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=1)))
    other = State(films / "other" / ".jali")
    other.folder.mkdir(parents=True)
    assert deployments.take_over(other) == 0
    assert state_of(client, waiting).type == StateType.PENDING
    assert deployments.take_over(here()) == 3
    assert state_of(client, waiting).type == StateType.CRASHED
    assert state_of(client, later).type == StateType.SCHEDULED
    assert state_of(client, taken_by_a_worker(client)).type == StateType.PENDING


def taken_by_a_worker(client: SyncPrefectClient) -> Any:
    one = begun(client, Scheduled())
    client.set_flow_run_state(one.id, Pending())
    return one


def test_a_refusal_is_stored_by_name_and_sentence_and_nothing_of_the_error(
    state: State, client: SyncPrefectClient
) -> None:
    runs = []

    @flow(persist_result=False)
    @named_refusals
    def refused() -> None:
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        runs.append(context.flow_run)
        (note,) = (here().folder / "flow-runs").iterdir()
        assert (note.name, note.read_text()) == (str(runs[0].id), os.environ["PREFECT_API_URL"])
        raise BudgetExceeded("too dear")

    with pytest.raises(BudgetExceeded, match="too dear"):
        refused()
    stored = state_of(client, runs[0])
    assert (stored.type, stored.name, stored.message) == (StateType.FAILED, "Refused: budget", "too dear")
    assert stored.data is None


def test_prefect_deploy_takes_the_schedules_of_a_checkout(shared_prefect: str, tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    settings = environment(PREFECT_API_URL=shared_prefect, PREFECT_HOME=str(tmp_path), PWD=str(tmp_path))
    prefect = str(Path(JALI).with_name("prefect"))
    with temporary_settings({PREFECT_API_URL: shared_prefect}), get_client(sync_client=True) as client:
        deployments._require_pool(client)
        done = subprocess.run(
            [prefect, "deploy", "--all", "--no-prompt"],
            cwd=checkout, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        for name in ("sample", "promote the sample"):
            (found,) = [one for one in client.read_deployments() if one.name == name]
            assert found.job_variables["working_dir"] == str(tmp_path)
            client.delete_deployment(found.id)


def until(met: Callable[[], Any], seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_schedule_fires_in_private_and_ends_with_all_it_started_when_it_is_killed(tmp_path: Path) -> None:
    write_config(tmp_path)
    said = tmp_path / "said"
    with said.open("w") as output:
        command = [JALI, "schedule", "jali.yaml", "--every", "2s"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=output, stderr=output)
    try:
        of_run = until(
            lambda: [one for one in processes_of(tmp_path) if b"in_worker" in (one / "cmdline").read_bytes()]
        )
        until(lambda: (tmp_path / ".jali" / "runs").exists())
        assert privacy_of(of_run[0]) == PRIVATE
        server = (tmp_path / ".jali" / "schedule-server").read_text()
        assert httpx.post(f"{server}/deployments/filter", json={}).status_code == 401
        until(lambda: "films: Completed. Published: pdp-histogram v1." in said.read_text())
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until(lambda: not servers_of(tmp_path), 15)
    assert "films: every 2s; next" in clean_text(said.read_text())
    secret = password(here()).partition(":")[2].encode()
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if secret in path.read_bytes()] == [], "it is in no log, deployment or run"
