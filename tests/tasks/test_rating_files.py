from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from expectations.suites import Minimums
from models.errors import EnvironmentFault, SpecError
from models.ratings import RatingScale
from tasks import netflix
from tasks.item_files import read_items
from tasks.loading import load
from tasks.rating_files import RatingsSource, catalogue_is_public, read_ratings
from tasks.sample import read_sample
from tasks.validation import validate

SCALE = RatingScale(low=1, high=5)


def written(path: Path, text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return str(path)


def triples(file: RatingsSource) -> set[tuple[str, str, float]]:
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
    assert triples(RatingsSource(path=written(tmp_path / f"{name}{suffix}", FILES[name]))) == EXPECTED


def test_columns_can_be_named_and_the_delimiter_declared(tmp_path: Path) -> None:
    path = written(tmp_path / "shop.txt", "stars;sku;who;when\n4;10;7;x\n3;2;7;y\n1;10;12;z\n")
    columns = {"user": "who", "item": "sku", "rating": "stars"}
    assert triples(RatingsSource(path=path, columns=columns, delimiter=";")) == EXPECTED


def test_text_ids_keep_their_spelling_and_labels_have_a_canonical_order(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\nzoë,007,5\n10,7,3\n9,b,1.5\n")
    _, table = read_ratings(RatingsSource(path=path))
    assert table.user_labels == ("9", "10", "zoë")
    assert table.item_labels == ("007", "7", "b")
    assert table.users.tolist() == [2, 1, 0]


def test_missing_fields_are_marked_for_validation_and_not_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\na,1,5\n,2,NaN\nb,,\n")
    _, table = read_ratings(RatingsSource(path=path))
    assert table.users.tolist() == [0, -1, 1]
    assert table.items.tolist() == [0, 1, -1]
    assert np.isnan(table.ratings).tolist() == [False, True, True]


def test_text_among_the_ratings_is_kept_for_validation_to_find(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user,item,rating\na,1,5\nb,1,good\n")
    _, table = read_ratings(RatingsSource(path=path))
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
        ("r.csv", f"user,item,rating\n{SECRET},1,{'5' * 2**21}\n", "a line of a megabyte"),
        ("u.data", f"{SECRET} 1 5\n", "first line has 1"),
        ("ratings.dat", f"{SECRET},1,5,7\n", "first line has 1"),
    ],
)
def test_a_file_that_is_no_ratings_file_is_refused_without_quoting_it(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence) as refusal:
        read_ratings(RatingsSource(path=written(tmp_path / name, content)))
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert SECRET not in str(refusal.value.__context__)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_ratings(RatingsSource(path=str(tmp_path / "nope.csv")))
    with pytest.raises(SpecError, match="is a folder"):
        read_ratings(RatingsSource(path=str(tmp_path)))
    damaged = tmp_path / "r.csv.gz"
    damaged.write_bytes(gzip.compress(b"user,item,rating\n1,1,1\n")[:-9])
    with pytest.raises(SpecError, match="whole gzip file"):
        read_ratings(RatingsSource(path=str(damaged)))
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        read_ratings(RatingsSource(path="/proc/self/mem"))


@pytest.mark.parametrize("path", ["/dev/zero", "~no-such-user/r.csv", "x" * 5000, "a\0b"])
def test_a_path_that_no_file_can_have_is_refused_in_a_short_sentence(path: str) -> None:
    with pytest.raises(SpecError, match=r"does not exist|is a device") as refusal:
        read_ratings(RatingsSource(path=path))
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("delimiter", ['"', "\n", "\r", "é", "\u2028"])
def test_what_cannot_separate_columns_is_no_delimiter(delimiter: str) -> None:
    with pytest.raises(ValidationError, match="one ASCII character"):
        RatingsSource(path="r.csv", delimiter=delimiter)


def test_an_undeclared_scale_is_asked_for_and_not_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "own.csv", FILES["own.csv"])
    with pytest.raises(SpecError, match="--scale 1:5:1"):
        load(RatingsSource(path=path), None, None)
    assert load(RatingsSource(path=path), None, SCALE).scale == SCALE


@pytest.mark.parametrize(
    ("name", "scale"), [("u.data", "1:5:1"), ("ratings.dat", "1:5:1"), ("ratings.csv", "0.5:5:0.5")]
)
def test_the_scale_of_a_named_format_is_known(tmp_path: Path, name: str, scale: str) -> None:
    assert str(load(RatingsSource(path=written(tmp_path / name, FILES[name])), None, None).scale) == scale


def test_where_the_catalogue_comes_from_is_known_before_a_file_is_opened(tmp_path: Path) -> None:
    items = written(tmp_path / "items.csv", "item,title\n2,Two\n10,Ten\n")
    for name in FILES:
        file = RatingsSource(path=written(tmp_path / name, FILES[name]))
        for given in (None, items):
            loaded = load(file, given, SCALE)
            assert loaded.catalogue.public == catalogue_is_public(file, given)
    assert len(load(RatingsSource(path=str(tmp_path / "u.data")), None, None).catalogue) == 1682


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
        ("items.csv", f"item,tags\n1,{'|'.join(map(str, range(2001)))}\n", "more than 2,000 different"),
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


NETFLIX = {"1": "7,4,2005-09-06\n12,1,2004-01-01\n", "2": "7,3,2005-09-06\n"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_both_forms_of_the_netflix_prize_are_read(tmp_path: Path, suffix: str, end: str) -> None:
    expected = {("7", "1", 4.0), ("12", "1", 1.0), ("7", "2", 3.0)}
    texts = {movie: f"{movie}:\n{lines}".replace("\n", end) for movie, lines in NETFLIX.items()}
    for form in ("per movie", "one", "several"):
        folder = tmp_path / form
        folder.mkdir()
        if form == "one":
            written(folder / f"combined_data_1.txt{suffix}", "".join(texts.values()))
        for movie, text in texts.items():
            if form != "one":
                name = f"mv_000000{movie}.txt" if form == "per movie" else f"combined_data_{movie}.txt"
                written(folder / f"{name}{suffix}", text.rstrip())
        (folder / "movie_titles.txt").write_text("1,2003,Dinosaur Planet\n")
        source = RatingsSource(path=str(folder))
        assert triples(source) == expected
        assert catalogue_is_public(source, None)
    loaded = load(RatingsSource(path=str(tmp_path / "one" / f"combined_data_1.txt{suffix}")), None, None)
    assert (str(loaded.scale), len(loaded.catalogue), loaded.catalogue.public) == ("1:5:1", 17770, True)


def test_a_netflix_folder_read_in_portions_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for movie in range(1, 41):
        users = rng.permutation(300)[: rng.integers(1, 50)]
        text = "".join(f"{user},{1 + user % 5},2005-01-01\n" for user in users)
        written(tmp_path / f"mv_{movie:07}.txt", f"{movie}:\n{text}")
    source = RatingsSource(path=str(tmp_path))
    whole = triples(source)
    monkeypatch.setattr(netflix, "BYTES_AT_ONCE", 1000)
    assert triples(source) == whole
    assert all(value == 1 + int(user) % 5 for user, _, value in whole)
    assert read_ratings(source)[1].item_labels == tuple(str(movie) for movie in range(1, 41))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("mv_0000001.txt", f"{SECRET},4,2005-01-01\n1:\n", "must begin with the line MOVIE:"),
        ("mv_0000001.txt", f"1:\n{SECRET},4,2005-01-01\n2:\n5,4,2005-01-01\n", "the line of a second"),
        ("combined_data_1.txt", f"{SECRET},4,2005-01-01\n", "must begin with the line MOVIE:"),
        ("combined_data_1.txt", f"1:\n2:{SECRET},4,2005-01-01\n", "neither MOVIE: alone nor"),
        ("combined_data_1.txt", "1:\n2:,4,2005-01-01\n", "neither MOVIE: alone nor"),
        ("combined_data_1.txt", f"1:\n{SECRET}:\n", "neither MOVIE: alone nor"),
        ("combined_data_1.txt", f"1:\n{SECRET},4\n", "does not have 3 columns"),
        ("combined_data_1.txt", "1:\n2:\n", "no ratings below"),
        ("combined_data_1.txt", "", "is empty"),
    ],
)
def test_a_damaged_netflix_file_is_refused_without_quoting_it(
    tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    path = written(tmp_path / name, text)
    for source in (RatingsSource(path=path), RatingsSource(path=str(tmp_path))):
        with pytest.raises(SpecError, match=sentence) as refusal:
            read_ratings(source)
        assert SECRET not in str(refusal.value)


def test_a_folder_without_netflix_files_or_with_both_forms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no files of the Netflix Prize"):
        RatingsSource(path=str(tmp_path)).require("ratings")
    for name in ("mv_0000001.txt", "combined_data_1.txt"):
        written(tmp_path / name, "1:\n7,4,2005-01-01\n")
    with pytest.raises(SpecError, match="the same ratings twice"):
        RatingsSource(path=str(tmp_path)).require("ratings")
    with pytest.raises(SpecError, match="is a folder"):
        RatingsSource(path=str(tmp_path), format="csv").require("ratings")


@pytest.mark.parametrize("part", ["train", "test"])
def test_yahoo_r3_is_known_by_its_name(tmp_path: Path, part: str) -> None:
    path = written(tmp_path / f"ydata-ymusic-rating-study-v1_0-{part}.txt", "7\t10\t4\n7\t2\t3\n12\t10\t1\n")
    assert triples(RatingsSource(path=path)) == EXPECTED
    loaded = load(RatingsSource(path=path), None, None)
    assert (str(loaded.scale), len(loaded.catalogue), loaded.catalogue.public) == ("1:5:1", 1000, True)
    renamed = written(tmp_path / "r3.txt", "7\t10\t4\n")
    assert load(RatingsSource(path=renamed, format="yahoo-r3"), None, None).catalogue.public
    with pytest.raises(SpecError, match="its first line has 2"):
        read_ratings(RatingsSource(path=written(tmp_path / "r3.txt", "7\t10\n"), format="yahoo-r3"))


def parquet(path: Path, **columns: Any) -> str:
    pa.parquet.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    "columns",
    [
        {"when": ["x", "y", "z"], "userId": [7, 7, 12], "MovieID": [10, 2, 10], "rating": [4.0, 3.0, 1.0]},
        {"user": ["7", "7", "12"], "item": [10.0, 2.0, 10.0], "rating": ["4", "3", "1"]},
        {"user": pa.array(["7", "7", "12"]).dictionary_encode(), "item": [10, 2, 10], "rating": [4, 3, 1]},
        {"user": [7, 7, 12], "item": ["10", "2", "10"], "rating": pa.array([4, 3, 1], pa.float32())},
        {"user": [b"7", b"7", b"12"], "item": [10, 2, 10], "rating": pa.array([4, 3, 1], pa.decimal128(5, 2))},
    ],
)
def test_parquet_of_any_types_gives_the_same_ratings(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert triples(RatingsSource(path=parquet(tmp_path / "r.parquet", **columns))) == EXPECTED


def test_parquet_and_tsv_columns_can_be_named_and_nulls_are_kept(tmp_path: Path) -> None:
    names = {"user": "who", "item": "sku", "rating": "stars"}
    path = parquet(tmp_path / "r.parquet", who=["a", None, "NaN"], sku=[1, 2, None], stars=[3.3, None, float("nan")])
    _, table = read_ratings(RatingsSource(path=path, columns=names))
    assert (table.users.tolist(), table.items.tolist()) == ([0, -1, -1], [0, 1, -1])
    assert np.isnan(table.ratings).tolist() == [False, True, True]
    tsv = written(tmp_path / "r.tsv.gz", 'stars\tsku\twho\n4\t10\t7\n3\t2\t7\n1\t10\t12"\n')
    assert ('12"', "10", 1.0) in triples(RatingsSource(path=tsv, columns=names))


def test_tenths_held_in_single_precision_are_on_a_scale_of_tenths(tmp_path: Path) -> None:
    scale = RatingScale(low=0, high=1, step=0.1)
    values = pa.array(scale.levels, pa.float32())
    path = parquet(tmp_path / "r.parquet", user=list(range(11)), item=[0, 1] * 5 + [0], rating=values)
    assert len(validate(load(RatingsSource(path=path), None, scale), Minimums())) == 11


def test_a_parquet_file_with_any_byte_of_its_metadata_changed_is_read_or_refused(tmp_path: Path) -> None:
    path = Path(parquet(tmp_path / "r.parquet", user=["a"], item=["b"], rating=[5]))
    raw = path.read_bytes()
    for at in range(len(raw) - 8 - int.from_bytes(raw[-8:-4], "little"), len(raw), 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x80]) + raw[at + 1 :])
        with suppress(SpecError):
            read_ratings(RatingsSource(path=str(path)))


def test_a_parquet_file_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    fake = written(tmp_path / "r.parquet", f"user,item,rating\n{SECRET},1,5\n")
    with pytest.raises(SpecError, match="is no Parquet file"):
        read_ratings(RatingsSource(path=fake))
    nested = parquet(tmp_path / "n.parquet", user=[[SECRET]], item=[1], rating=[5])
    with pytest.raises(SpecError, match="lists or records"):
        read_ratings(RatingsSource(path=nested))
    unnamed = parquet(tmp_path / "u.parquet", user=[SECRET], item=[1], stars=[5])
    with pytest.raises(SpecError, match="no column is named rating"):
        read_ratings(RatingsSource(path=unnamed))
    not_text = parquet(tmp_path / "b.parquet", user=[b"\xff\xfe"], item=[1], rating=[5])
    with pytest.raises(SpecError, match="cannot be read"):
        read_ratings(RatingsSource(path=not_text))
    empty = parquet(tmp_path / "e.parquet", user=pa.array([], pa.int64()), item=[], rating=[])
    with pytest.raises(SpecError, match="no ratings below"):
        read_ratings(RatingsSource(path=empty))
    whole = Path(parquet(tmp_path / "d.parquet", user=list(range(9999)), item=[1] * 9999, rating=[5] * 9999))
    raw = whole.read_bytes()
    whole.write_bytes(raw[:4] + b"\x00" * 2000 + raw[2004:])
    with pytest.raises(SpecError, match="damaged"):
        read_ratings(RatingsSource(path=str(whole)))


def test_a_parquet_or_tsv_catalogue_is_read_like_a_csv(tmp_path: Path) -> None:
    columns = {"tags": ["Animation|Comedy", None], "movieId": [1, 2], "title": ["Toy Story (1995)", None]}
    for path in (
        parquet(tmp_path / "items.parquet", **columns),
        written(tmp_path / "items.tsv", "tags\tmovieId\ttitle\nAnimation|Comedy\t1\tToy Story (1995)\n\t2\t\n"),
    ):
        catalogue = read_items(Path(path))
        assert (catalogue.items, catalogue.titles) == (("1", "2"), ("Toy Story (1995)", ""))
        assert catalogue.features.tolist() == [[1, 1], [0, 0]]


def test_a_rating_takes_twelve_bytes_before_and_after_validation(tmp_path: Path) -> None:
    path = written(tmp_path / "own.csv", FILES["own.csv"])
    loaded = load(RatingsSource(path=path), None, SCALE)
    ratings = validate(loaded, Minimums())
    for columns in (
        (loaded.table.users, loaded.table.items, loaded.table.ratings),
        (ratings.users, ratings.items, ratings.values),
    ):
        assert sum(column.itemsize for column in columns) == 12
