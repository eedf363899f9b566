"""What becomes of a service as it hears of champions that can be served, and of such that cannot."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pytest

from models.release import ARRAYS_FILE, FORMAT, RELEASE_FILE
from serving import service as module
from serving.service import Service
from serving.words import Champion, Word
from tests.serving.releases import champion, service


def truncated(one: Champion) -> Champion:
    path = one.folder / ARRAYS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    return one


def of_a_newer_jali(one: Champion) -> Champion:
    path = one.folder / RELEASE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    return with_its_digests(one)


def with_its_digests(one: Champion) -> Champion:
    return one.model_copy(
        update={"sha256": {name: hashlib.sha256((one.folder / name).read_bytes()).hexdigest() for name in one.sha256}}
    )


def gone(one: Champion) -> Champion:
    (one.folder / RELEASE_FILE).unlink()
    return one


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(truncated, "not as it came"), (of_a_newer_jali, "Upgrade Jali"), (gone, "cannot be read")],
)
def test_a_champion_that_cannot_be_loaded_leaves_the_old_one_serving(tmp_path: Path, spoil, why: str) -> None:
    told: list[str] = []
    serving = service(champion(tmp_path, "1"), tell=told.append)
    spoiled = spoil(champion(tmp_path, "2"))
    for _ in range(3):
        serving.hear(Word(champion=spoiled, in_touch=True))
    assert serving.served is not None
    assert serving.served.champion.version == "1"
    assert why in (serving.problem or "")
    assert "v1 goes on being served" in told[-1]
    assert len(told) == 2  # once, however often it is heard
    assert "jali_champion_load_failures_total 1.0" in serving.metrics.text().decode()
    serving.hear(Word(champion=champion(tmp_path, "3"), in_touch=True))
    assert serving.problem is None
    assert serving.served.champion.version == "3"


def test_a_champion_that_cannot_be_loaded_is_tried_again_ever_more_seldom_or_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [100.0], []
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    real = module.load
    monkeypatch.setattr(module, "load", lambda champion: (tries.append(now[0]), real(champion))[1])
    one = champion(tmp_path)
    path, word = one.folder / ARRAYS_FILE, Word(champion=one, in_touch=True)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    serving = service()
    for _ in range(200):
        now[0] += 1
        serving.hear(word)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60]
    serving.hear(Word(champion=champion(tmp_path, "2"), in_touch=True))
    assert serving.served is not None
    path.write_bytes(content)
    serving.hear(word)
    assert serving.served.champion == one


def test_a_version_that_was_refused_and_is_served_after_all_is_no_problem_any_more(tmp_path: Path) -> None:
    one = champion(tmp_path)
    serving = service(one)
    serving.hear(Word(champion=one, in_touch=True, refused="1", problem="v1 is not served: no files.", refusal=1))
    assert serving.problem is not None
    serving.hear(Word(champion=one, in_touch=True))
    assert serving.problem is None


def test_going_back_is_as_quick_as_going_on(tmp_path: Path) -> None:
    one, two = champion(tmp_path, "1"), champion(tmp_path, "2")
    serving = service(one, two, one)
    assert serving.served is not None
    assert serving.served.champion == one


def test_what_is_heard_again_is_not_loaded_again(tmp_path: Path) -> None:
    one = champion(tmp_path, "1")
    serving = service(one)
    before = serving.served
    serving.hear(Word(champion=one.model_copy(), in_touch=True))
    assert serving.served is before


def test_a_version_that_the_watcher_refuses_is_counted_once(tmp_path: Path) -> None:
    serving = service(champion(tmp_path, "1"))
    for _ in range(3):
        serving.hear(Word(in_touch=True, refused="2", problem="v2 is not served: damaged."))
    assert serving.problem == "v2 is not served: damaged."
    assert "jali_champion_load_failures_total 1.0" in serving.metrics.text().decode()


def test_with_nothing_to_serve_a_refusal_ends_the_service_and_with_something_it_does_not(tmp_path: Path) -> None:
    stopped: list[bool] = []
    nobody = Word(in_touch=True, problem="no version is promoted.", refusal=1)
    serving = service(stop=lambda: stopped.append(True))
    serving.hear(Word(in_touch=False, problem="MLflow has not answered yet."))
    assert not stopped
    serving.hear(nobody)
    assert (stopped, serving.ended) == ([True], nobody)
    other = service(champion(tmp_path), stop=lambda: stopped.append(False))
    other.hear(nobody)
    assert (stopped, other.ended, other.problem) == ([True], None, "no version is promoted.")


def test_silence_is_not_taken_for_touch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = service(champion(tmp_path))
    assert serving.in_touch
    assert "jali_registry_in_touch 1.0" in serving.metrics.text().decode()
    monkeypatch.setattr(module, "SILENCE", -1.0)
    assert not serving.in_touch
    assert "jali_registry_in_touch 0.0" in serving.metrics.text().decode()
    assert "nothing was heard" in (serving.problem or "")


def test_a_terminal_hears_of_changes_alone(tmp_path: Path) -> None:
    told: list[str] = []
    serving: Service = service(champion(tmp_path), tell=told.append)
    down = Word(in_touch=False, problem="MLflow does not answer.")
    for word in (down, down, Word(in_touch=True), Word(in_touch=True), down):
        serving.hear(word)
    assert [line.split()[0] for line in told] == ["Serving", "jali:", "The", "jali:"]
