from __future__ import annotations

import io

import pytest
from rich.console import Console

from flows.recommenders_view import described
from models.index import RECOMMENDERS
from models.privacy.specification import PrivacySpecification


def shown(name: str, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in described(RECOMMENDERS[name]):
        console.print(part, highlight=False)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return " ".join(text.split())


@pytest.mark.parametrize("name", RECOMMENDERS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_everything_that_is_promised_is_shown_and_fits(name: str, width: int) -> None:
    kind = RECOMMENDERS[name]
    promise = kind().promise(PrivacySpecification(epsilon=1, relation=kind.relation))
    text = shown(name, width)
    if width >= 80:
        for fact in (promise.protects, promise.verdict, promise.sentence, promise.reference, kind.paper):
            assert fact in text
        for condition in promise.conditions:
            assert f"- {condition}" in text
    for setting in kind.model_fields:
        assert f".{setting}=" in text.replace(" ", "") or width == 40


def test_what_a_policy_users_and_a_setting_change_is_said() -> None:
    histogram, dp_pmf = shown("pdp-histogram"), shown("dp-pmf")
    assert "--unit user proven: What is released is nearly as likely with or without everything" in histogram
    assert "Declared levels: conservative ε=0.1 to 0.2 (54%); moderate ε=0.2 to 1 (37%); liberal ε=1 (9%)." in histogram
    assert "--unit user refused: dp-pmf protects one rating" in dp_pmf
    assert "solver=alg2 broken:" in dp_pmf
    assert "--policy" not in shown("pmf")
