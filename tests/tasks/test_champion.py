"""What the watcher says of a registry, and what it keeps on the disk; with MLflow's answers made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from models.release import ARRAYS_FILE, FORMAT, RELEASE_FILE
from serving.words import Word
from tasks import champion as module
from tasks.champion import Watch
from tasks.registered import CHECKSUM, RELEASE_FOLDER, checksum
from tasks.state import State
from tests.serving.releases import release

PASSWORD = "swordfish"


@dataclass
class Version:
    version: str
    name: str = "films.serving"
    source: str = "models:/m-1"
    creation_timestamp: int = 1
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Model:
    name: str
    aliases: dict[str, str]


class Registry:
    """What an MlflowClient and its artifact store do for the watcher; `down` raises whatever it holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.champion: Version | None = None
        self.models = [Model("films.serving", {"champion": "1"})]
        self.down: Exception | None = None
        self.spoil: Callable[[Path], object] = lambda folder: None
        self.downloads = 0

    def get_model_version_by_alias(self, name: str, alias: str) -> Version:
        assert (name, alias) == ("films.serving", "champion")
        if self.down:
            raise self.down
        if self.champion is None:
            raise MlflowException.invalid_parameter_value(f"Registered model alias {alias} not found.")
        return self.champion

    def search_registered_models(self, filter_string: str, max_results: int) -> list[Model]:
        assert filter_string == "name LIKE '%.serving'"
        if self.down:
            raise self.down
        return self.models

    def download(self, name: str, number: str, folder: Path) -> Path:
        self.downloads += 1
        place = folder / RELEASE_FOLDER
        place.mkdir(parents=True)
        release(int(number)).save(place)
        self.spoil(place)
        return folder


@pytest.fixture
def registry(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(tmp_path)
    monkeypatch.setattr(module, "download_version", made.download)
    monkeypatch.setattr(Watch, "_open", lambda watch: made)
    state.tracking_database.touch()
    return made


def look(state: State, source: str | None = "films") -> Word:
    """The first look of a watcher that has just started."""
    return Watch(state, source).look()


def kept(state: State) -> set[str]:
    return {path.name for path in (state.folder / "serving" / "films").iterdir()}


def test_a_champion_is_fetched_once_and_said_with_what_anybody_may_know(state: State, registry: Registry) -> None:
    registry.champion = Version("1", tags={"promotion.condition": "chosen", "promotion.by": "ada"})
    watch = Watch(state, None)
    first, second = watch.look(), watch.look()
    assert first == second == look(state)
    assert registry.downloads == 1
    assert first.in_touch
    assert first.champion is not None
    assert (first.champion.name, first.champion.version) == ("films.serving", "1")
    assert first.champion.tags == {"promotion.condition": "chosen"}
    assert {path.name for path in first.champion.folder.iterdir()} == {ARRAYS_FILE, RELEASE_FILE}
    assert first.champion.folder.stat().st_mode & 0o077 == 0


def test_the_alias_moves_forth_and_back_and_two_versions_are_kept(state: State, registry: Registry) -> None:
    watch = Watch(state, "films")
    said = []
    for number in ("1", "2", "3", "2"):
        registry.champion = Version(number, creation_timestamp=int(number))
        word = watch.look()
        assert word.champion is not None
        said.append(word.champion.version)
    assert said == ["1", "2", "3", "2"]
    assert {name.partition("-")[0] for name in kept(state)} == {"2", "3", "champion.json"}


def test_a_model_that_was_deleted_and_made_again_is_fetched_again(state: State, registry: Registry) -> None:
    watch = Watch(state, "films")
    for made in (1, 2):
        registry.champion = Version("1", creation_timestamp=made)
        watch.look()
    assert registry.downloads == 2


@pytest.mark.parametrize(
    "down",
    [
        ConnectionError(f"http://me:{PASSWORD}@registry"),
        MlflowException(f"http://me:{PASSWORD}@registry"),
        MlflowException("busy", error_code=8),
    ],
)
def test_with_mlflow_down_what_was_kept_is_served_also_after_a_restart(
    state: State, registry: Registry, down: Exception
) -> None:
    registry.champion = Version("1")
    watch = Watch(state, "films")
    before = watch.look().champion
    registry.down = down
    for one in (watch.look(), look(state), look(state, None), Watch(state, "films").before_asking()):
        assert one is not None
        assert one.champion == before
        assert not one.in_touch
        assert "is served as it was kept here" in (one.problem or "")
        assert PASSWORD not in (one.problem or "")
    assert Watch(state, None).before_asking() is None  # what is kept does not say which source is meant
    registry.down = None
    assert watch.look() == Word(champion=before, in_touch=True)


def test_with_mlflow_down_and_nothing_kept_there_is_nothing_to_serve(state: State, registry: Registry) -> None:
    registry.down = ConnectionError()
    word = look(state)
    assert (word.champion, word.refusal) == (None, 3)
    assert "Start MLflow" in (word.problem or "")
    assert Watch(state, "films").before_asking() is None


@pytest.mark.parametrize("source", ["films", None])
def test_where_nobody_is_promoted_the_sentence_says_how_to(
    state: State, registry: Registry, source: str | None
) -> None:
    registry.models = [Model("films.serving", {})]
    word = look(state, source)
    assert (word.champion, word.in_touch, word.refusal) == (None, True, 1)
    assert "jali promote" in (word.problem or "")


def test_without_a_database_nobody_is_promoted_and_none_is_made(state: State) -> None:
    assert look(state).refusal == 1
    assert not state.tracking_database.exists()


def test_a_champion_taken_away_is_not_served_after_a_restart(state: State, registry: Registry) -> None:
    registry.champion = Version("1")
    watch = Watch(state, "films")
    watch.look()
    registry.champion = None
    assert watch.look().refusal == 1
    registry.down = ConnectionError()
    assert look(state).refusal == 3


def test_of_several_sources_one_must_be_named(state: State, registry: Registry) -> None:
    registry.models.append(Model("books.serving", {"champion": "4"}))
    registry.models.append(Model("songs.serving", {}))
    word = look(state, None)
    assert word.refusal == 2
    assert "books, films" in (word.problem or "")


def truncate(folder: Path) -> None:
    path = folder / ARRAYS_FILE
    path.write_bytes(path.read_bytes()[:-10])


def make_newer(folder: Path) -> None:
    path = folder / RELEASE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(truncate, "Fetch the two files"), (make_newer, "Upgrade Jali"), (shutil.rmtree, "files cannot be had")],
)
def test_a_champion_that_cannot_be_read_is_not_said_and_the_one_before_is(
    state: State, registry: Registry, spoil: Callable[[Path], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(state, "films")
    registry.champion = Version("1")
    before = watch.look().champion
    registry.champion, registry.spoil = Version("2"), spoil
    for word in (watch.look(), watch.look(), look(state)):
        assert word.champion == before
        assert word.refused == "2"
        assert why in (word.problem or "")
    assert registry.downloads == 3  # not every second
    assert not [name for name in kept(state) if name.startswith(("2", ".new"))]
    monkeypatch.setattr(module, "ANEW", -1.0)
    watch._failed = None
    registry.spoil = lambda folder: None
    assert watch.look().refused is None


def test_a_first_champion_that_cannot_be_read_is_refused(state: State, registry: Registry) -> None:
    registry.champion, registry.spoil = Version("1"), truncate
    assert look(state).refusal == 1


def test_files_that_were_changed_after_the_promotion_are_not_served(
    state: State, registry: Registry, tmp_path: Path
) -> None:
    promoted = checksum(registry.download("films.serving", "1", tmp_path / "promoted"))
    registry.champion = Version("1", tags={CHECKSUM: promoted})
    assert look(state).champion is not None
    registry.champion = Version("2", tags={CHECKSUM: promoted})
    assert "not those that were promoted" in (look(state).problem or "")


def test_files_that_were_damaged_here_are_fetched_again(state: State, registry: Registry) -> None:
    registry.champion = Version("1")
    before = look(state).champion
    assert before is not None
    truncate(before.folder)
    registry.down = ConnectionError()
    assert look(state).refusal == 3
    registry.down = None
    assert look(state) == Word(champion=before, in_touch=True)
    assert registry.downloads == 2


def test_two_servers_share_what_is_kept(state: State, registry: Registry) -> None:
    one, other = Watch(state, "films"), Watch(state, "films")
    for number in ("1", "2", "3"):
        registry.champion = Version(number, creation_timestamp=int(number))
        assert one.look() == other.look()
    assert registry.downloads == 3
