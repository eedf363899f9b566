from __future__ import annotations

from pathlib import Path

import pytest

from flows.job import make_job
from flows.reproduce import Reproduction, experiment_named
from flows.reproduction_report import require_page, statements_table, write_page
from models.errors import EnvironmentFault, SpecError
from tests.models.papers.test_zhang_2019 import made_up


def reproduction(name: str = "zhang-fig2", source: str = "films", rmse: float = 1.0) -> Reproduction:
    experiment = experiment_named(name)
    job = make_job({"source": source, "folds": 3})
    return Reproduction(experiment, job, {cell: made_up(rmse) for cell in experiment.cells}, 4.0)


def test_a_page_has_a_section_per_experiment_and_source_and_replaces_its_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_page(str(page), [reproduction(), reproduction("zhang-fig5")])
    write_page(str(page), [reproduction(source="books")])
    page.write_text(page.read_text() + "A note by hand.\n")
    write_page(str(page), [reproduction(rmse=1.234)])
    text = page.read_text()
    assert text.count("## Figure 2") == 2
    assert text.count("## Figure 5") == 1
    assert text.startswith("# The papers' figures")
    assert "| PDP-PMF's RMSE is around 1.0 | 1.234 to 1.234 | 1.234 to 1.234 | 1.234 to 1.234 |" in text
    assert "1.000 to 1.000" in text  # the other source's
    assert "A note by hand." in text
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        "zhang-fig2-films.png",
        "zhang-fig2-books.png",
        "zhang-fig5-films.png",
    }


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("a file where the pictures should go")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_page(str(tmp_path / "page.md"), [reproduction()])


def test_what_would_fail_after_the_work_fails_before_it(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "taken").write_text("a file where the pictures should go")
    for name, sentence in (("latin.md", "not UTF-8"), ("page", "Markdown"), ("taken.md", "that is a file")):
        with pytest.raises((SpecError, EnvironmentFault), match=sentence):
            require_page(str(tmp_path / name))
    require_page(str(tmp_path / "fine.md"))
    write_page(str(tmp_path / "my page.md"), [reproduction(source="my data")])
    assert "(my%20page/zhang-fig2-my%20data.png)" in (tmp_path / "my page.md").read_text()
    assert "--source 'my data' --folds 3`" in (tmp_path / "my page.md").read_text()


def test_the_command_names_the_files_and_no_folder(tmp_path: Path) -> None:
    for name in ("r.csv", "items.csv"):
        (tmp_path / name).touch()
    told = {"ratings": str(tmp_path / "r.csv"), "items": str(tmp_path / "items.csv"), "scale": "1:5:1"}
    experiment = experiment_named("zhang-fig3")
    command = Reproduction(experiment, make_job(told), {}, 4.0).command
    assert command == (
        "jali reproduce zhang-fig3 --ratings r.csv --items items.csv --scale 1:5:1 --source r.csv --folds 10"
    )


def test_the_terminal_shows_what_the_paper_says_and_what_came_out() -> None:
    table = statements_table(reproduction())
    assert [column.header for column in table.columns] == [
        "published statement",
        "as published (broken)",
        "exact",
        "pdp-histogram",
    ]
    assert table.row_count == 3


def test_an_unknown_experiment_names_those_there_are() -> None:
    with pytest.raises(SpecError, match="zhang-fig2, zhang-fig3, zhang-fig4, zhang-fig5"):
        experiment_named("zhang-fig1")


def test_a_name_of_any_length_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(SpecError, match="Choose from zhang-fig2") as refusal:
        experiment_named("x" * 5000)
    assert len(str(refusal.value)) < 400
