from __future__ import annotations

from pathlib import Path

import pytest

from flows.reproduce import Reproduction, experiment_named
from flows.reproduction_report import statements_table, write_page
from models.errors import EnvironmentFault, SpecError
from tests.models.papers.test_zhang_2019 import made_up


def reproduction(name: str = "zhang-fig2", source: str = "films", rmse: float = 1.0) -> Reproduction:
    experiment = experiment_named(name)
    return Reproduction(experiment, source, 3, {cell: made_up(rmse) for cell in experiment.cells}, 4.0)


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
