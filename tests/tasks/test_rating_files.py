from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from models.errors import EnvironmentFault, SpecError
from models.ratings import RatingScale
from tasks.item_files import read_items
from tasks.loading import load
from tasks.rating_files import RatingsFile, catalogue_is_public, read_ratings
from tasks.sample import read_sample

SCALE = RatingScale(low=1, high=5)


def written(path: Path, text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return str(path)


def triples(file: RatingsFile) -> set[tuple[str, str, float]]:
    _, table = read_ratings(file)
    return {
        (table.user_labels[user], table.item_labels[item], float(value))
        for user, item, value in zip(table.users, table.items, table.ratings, strict=True)
    }


EXPECTED = {("7", "10", 4.0), ("7", "2", 3.0), ("12", "10", 1.0)}
FILES = {
    "u.data": "7\t10\t4\t881250949\n7\t2\t3\t881250949\n12\t10\t1\t881250949\n",
    "ratings.dat": "7::10::4::978300760\n7::2::3::978300760\n12::10::1::978300760\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n7,10,4.0,1\n7,2,3.0,1\n12,10,1.0,1\n",
    "own.csv": "rating,user,item\n4,7,10\n3,7,2\n1,12,10\n",
    "ids.CSV": 'User_Id,"Item_Id",Rating\r\n7,10,4\r\n7,2,3\r\n12,"10",1\r\n',
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_ratings_plain_and_compressed(tmp_path: Path, name: str, suffix: str) -> None:
    assert triples(RatingsFile(path=written(tmp_path / f"{name}{suffix}", FILES[name]))) == EXPECTED


def test_columns_can_be_named_and_the_delimiter_declared(tmp_path: Path) -> None:
    path = written(tmp_path / "shop.txt", "stars;sku;who;when\n4;10;7;x\n3;2;7;y\n1;10;12;z\n")
    columns = {"user": "who", "item": "sku", "rating": "stars"}
    assert triples(RatingsFile(path=path, columns=columns, delimiter=";")) == EXPECTED


def test_text_ids_keep_their_spelling_and_labels_have_a_canonical_order(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\nzoë,007,5\n10,7,3\n9,b,1.5\n")
    _, table = read_ratings(RatingsFile(path=path))
    assert table.user_labels == ("9", "10", "zoë")
    assert table.item_labels == ("007", "7", "b")
    assert table.users.tolist() == [2, 1, 0]


def test_missing_fields_are_marked_for_validation_and_not_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\na,1,5\n,2,NaN\nb,,\n")
    _, table = read_ratings(RatingsFile(path=path))
    assert table.users.tolist() == [0, -1, 1]
    assert table.items.tolist() == [0, 1, -1]
    assert np.isnan(table.ratings).tolist() == [False, True, True]


def test_text_among_the_ratings_is_kept_for_validation_to_find(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\na,1,5\nb,1,good\n")
    _, table = read_ratings(RatingsFile(path=path))
    assert table.ratings.dtype == object


SECRET = "secret-4711"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("r.csv", "", "is empty"),
        ("r.csv", " \n \n", "is empty"),
        ("r.csv", "user,item,rating\n", "no ratings below"),
        ("r.csv", b"\x00\x01\x02" + SECRET.encode(), "is binary"),
        ("r.csv", "user,item,rating\n\xe9,1,5\n".encode("latin-1"), "UTF-8"),
        ("r.csv", f"{SECRET},12,5\nb,1,3\n", "no column is named user or item or rating"),
        ("r.csv", f"user;item;rating\n{SECRET};1;5\n", "is the delimiter another"),
        ("r.csv", f"user,item,stars\n{SECRET},1,5\n", "no column is named rating"),
        ("r.csv", f"user,item,rating\n{SECRET},1,5\nb,1\n", "does not have 3 columns"),
        ("u.data", f"{SECRET} 1 5\n", "first line has 1"),
        ("ratings.dat", f"{SECRET},1,5,7\n", "first line has 1"),
    ],
)
def test_a_file_that_is_no_ratings_file_is_refused_without_quoting_it(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence) as refusal:
        read_ratings(RatingsFile(path=written(tmp_path / name, content)))
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert SECRET not in str(refusal.value.__context__)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_ratings(RatingsFile(path=str(tmp_path / "nope.csv")))
    with pytest.raises(SpecError, match="is a folder"):
        read_ratings(RatingsFile(path=str(tmp_path)))
    damaged = tmp_path / "r.csv.gz"
    damaged.write_bytes(gzip.compress(b"user,item,rating\n1,1,1\n")[:-9])
    with pytest.raises(SpecError, match="whole gzip file"):
        read_ratings(RatingsFile(path=str(damaged)))
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        read_ratings(RatingsFile(path="/proc/self/mem"))


@pytest.mark.parametrize("path", ["/dev/zero", "~no-such-user/r.csv", "x" * 5000, "a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused_in_a_short_sentence(path: str) -> None:
    with pytest.raises(SpecError, match=r"does not exist|is a device") as refusal:
        read_ratings(RatingsFile(path=path))
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("delimiter", ['"', "\n", "\r", "é", "\u2028"])
def test_what_cannot_separate_columns_is_no_delimiter(delimiter: str) -> None:
    with pytest.raises(ValidationError, match="one ASCII character"):
        RatingsFile(path="r.csv", delimiter=delimiter)


def test_an_undeclared_scale_is_asked_for_and_not_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "own.csv", FILES["own.csv"])
    with pytest.raises(SpecError, match="--scale 1:5:1"):
        load(RatingsFile(path=path), None, None)
    assert load(RatingsFile(path=path), None, SCALE).scale == SCALE


@pytest.mark.parametrize(
    ("name", "scale"), [("u.data", "1:5:1"), ("ratings.dat", "1:5:1"), ("ratings.csv", "0.5:5:0.5")]
)
def test_the_scale_of_a_named_format_is_known(tmp_path: Path, name: str, scale: str) -> None:
    assert str(load(RatingsFile(path=written(tmp_path / name, FILES[name])), None, None).scale) == scale


def test_where_the_catalogue_comes_from_is_known_before_a_file_is_opened(tmp_path: Path) -> None:
    items = written(tmp_path / "items.csv", "item,title\n2,Two\n10,Ten\n")
    for name in FILES:
        file = RatingsFile(path=written(tmp_path / name, FILES[name]))
        for given in (None, items):
            loaded = load(file, given, SCALE)
            assert loaded.catalogue.public == catalogue_is_public(file, given)
    assert len(load(RatingsFile(path=str(tmp_path / "u.data")), None, None).catalogue) == 1682


def test_ml_100k_items_have_titles_and_genres(tmp_path: Path) -> None:
    flags = "|".join("1" if at in (3, 4, 5) else "0" for at in range(19))
    path = tmp_path / "u.item"
    path.write_bytes(f"1|Café (1995)|01-Jan-1995||http://x|{flags}\n".encode("latin-1"))
    catalogue = read_items(path)
    assert catalogue.titles == ("Café (1995)",)
    assert catalogue.feature_names == ("Animation", "Children's", "Comedy")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("movies.dat", "1::Toy Story (1995)::Animation|Comedy\n2::None::(no genres listed)\n"),
        ("movies.csv", 'movieId,title,genres\n1,"Toy Story (1995)",Animation|Comedy\n2,None,(no genres listed)\n'),
        ("items.csv", "tags,item,title\nAnimation|Comedy,1,Toy Story (1995)\n,2,\n"),
    ],
)
def test_other_item_files_have_titles_and_tags(tmp_path: Path, name: str, text: str) -> None:
    catalogue = read_items(Path(written(tmp_path / name, text)))
    assert catalogue.items == ("1", "2")
    assert catalogue.titles[0] == "Toy Story (1995)"
    assert catalogue.feature_names == ("Animation", "Comedy")
    assert catalogue.features.tolist() == [[1, 1], [0, 0]]
    assert catalogue.public


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("items.csv", "item,title\n1,A\n1,B\n", "every item once"),
        ("items.csv", "item,title\n,A\n", "every item once"),
        ("items.csv", "name\nA\n", "must name its columns"),
        ("movies.dat", "1::A\n", "3 fields"),
        ("u.item", "1|A\n", "24 fields"),
    ],
)
def test_a_bad_item_file_is_refused_in_a_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        read_items(Path(written(tmp_path / name, text)))


def test_the_sample_is_movielens_latest_small() -> None:
    scale, table, catalogue = read_sample()
    assert (len(table.ratings), len(table.user_labels), len(catalogue)) == (100_004, 671, 9_066)
    assert str(scale) == "0.5:5:0.5"
    assert catalogue.titles[0] == "Toy Story (1995)"
    assert catalogue.public
    assert "Film-Noir" in catalogue.feature_names
