from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import EnvironmentFault, SpecError
from tasks import movielens
from tasks.loading import load
from tasks.movielens import DATA_SETS, fetch
from tasks.rating_files import RatingsSource
from tests.local_server import Site, serving

FLAGS = "|".join("0" for _ in range(19))
CONTENT = {
    "ml-100k": {"u.data": "7\t1\t4\t1\n", "u.item": f"1|A (1995)|||x|{FLAGS}\n", "README": "licence"},
    "ml-1m": {"ratings.dat": "7::1::4::1\n", "movies.dat": "1::A::Comedy\n", "README": "licence"},
    "ml-latest-small": {
        "ratings.csv": "userId,movieId,rating,timestamp\n7,1,4.5,1\n",
        "movies.csv": "movieId,title,genres\n1,A,Comedy\n",
        "README.txt": "licence",
    },
}


def archive(name: str, **more: str) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as packed:
        for file, text in CONTENT[name].items():
            packed.writestr(f"{name}/{file}", text)
        for file, text in more.items():
            packed.writestr(file, text)
    return raw.getvalue()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    files = {f"/mirror/{name}.zip": archive(name, **{"../escaped": "x", "/escaped": "x"}) for name in CONTENT}
    digest = hashlib.md5(files["/mirror/ml-100k.zip"]).hexdigest()
    files["/mirror/ml-100k.zip.md5"] = f"MD5 (ml-100k.zip) = {digest}\n".encode()
    with serving(files) as site:
        monkeypatch.setenv("JALI_MOVIELENS_URL", f"{site.address}/mirror/")
        yield site


@pytest.mark.parametrize("name", DATA_SETS)
def test_what_was_fetched_can_be_read_with_the_command_that_is_printed(site: Site, name: str) -> None:
    (licence, _, command) = fetch(name, f"data/{name}")
    assert "licence" in licence
    words = command.split()
    assert words[:3] == ["jali", "run", "--ratings"]
    loaded = load(RatingsSource(path=words[3]), words[5], None)
    assert (loaded.table.user_labels, loaded.catalogue.items, loaded.catalogue.public) == (("7",), ("1",), True)
    there = {path.name for path in Path("data").rglob("*")}
    assert there == {name, *CONTENT[name]}  # nothing else of the archive, and nothing half done


def test_what_exists_is_not_touched(site: Site) -> None:
    Path("mine").mkdir()
    with pytest.raises(SpecError, match="exists already"):
        fetch("ml-100k", "mine")
    assert site.asked == []
    with pytest.raises(SpecError, match="Choose from ml-100k, ml-1m"):
        fetch("ml-20m", "other")


def test_what_is_damaged_is_refused_and_leaves_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = site.files["/mirror/ml-100k.zip"]
    site.files["/mirror/ml-100k.zip"] = good + b"x"
    with pytest.raises(EnvironmentFault, match="MD5 published beside it"):
        fetch("ml-100k", "a")
    for raw in (b"no archive", good[:-40], archive("ml-100k")):  # the last is another data set's
        site.files["/mirror/ml-1m.zip"] = raw
        with pytest.raises(EnvironmentFault, match="no whole archive"):
            fetch("ml-1m", "a")
    del site.files["/mirror/ml-1m.zip"]
    with pytest.raises(SpecError, match="answers 404"):
        fetch("ml-1m", "a")
    monkeypatch.setattr(movielens, "MOST_BYTES", 3)
    with pytest.raises(EnvironmentFault, match="no whole archive"):
        fetch("ml-latest-small", "a")
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_MOVIELENS_URL", "http://me:secret@127.0.0.1:1")
    with pytest.raises(EnvironmentFault, match=r"http://127\.0\.0\.1:1/ml-1m\.zip cannot be fetched") as fault:
        fetch("ml-1m", str(tmp_path / "new" / "ml-1m"))
    assert "secret" not in str(fault.value)
    monkeypatch.setenv("JALI_MOVIELENS_URL", "http://nowhere.invalid")
    with pytest.raises(EnvironmentFault, match="does not answer"):
        fetch("ml-1m", str(tmp_path / "ml-1m"))


@pytest.mark.parametrize("folder", ["/proc/ml-1m", "x" * 5000])
def test_a_folder_that_cannot_be_written_is_one_short_sentence(site: Site, folder: str) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written") as fault:
        fetch("ml-1m", folder)
    assert len(str(fault.value)) < 400


def test_a_data_set_that_is_none_is_one_short_sentence() -> None:
    with pytest.raises(SpecError, match="Choose from ml-100k") as refusal:
        fetch("x" * 5000, "new")
    assert len(str(refusal.value)) < 400
