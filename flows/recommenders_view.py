"""What `jali recommenders` shows of each: its promise, what that is worth, what changes it, and the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from models.errors import SpecError
from models.privacy.guarantee import Guarantee
from models.privacy.specification import Policy, PrivacySpecification
from models.recommender import Recommender

STYLES = {"proven": "green", "conditional": "yellow", "broken": "red", "none": "dim"}


def described(kind: type[Recommender]) -> tuple[str, Table, Table, str]:
    """Name and first line, the promise at ε=1 and how it changes, the settings, and an empty line."""
    recommender = kind()
    plain = PrivacySpecification(epsilon=1, relation=kind.relation)
    promise = recommender.promise(plain)
    facts = _grid()
    facts.add_row("paper", escape(kind.paper))
    for label, text in _facts(promise):
        facts.add_row(label, text)
    if promise.unit is not None:
        policy = PrivacySpecification(policy=Policy(), relation=kind.relation)
        users = PrivacySpecification(epsilon=1, unit="user", relation=kind.relation)
        facts.add_row("--policy default", _change(recommender, promise, policy))
        facts.add_row("--unit user", _change(recommender, promise, users))
        for choice, other in _choices(kind):
            if other.promise(plain).verdict != promise.verdict:
                facts.add_row(choice, _change(other, promise, plain))
    settings = _grid()
    settings.add_row(f"--set {kind.name}", "")
    for setting, field in kind.model_fields.items():
        settings.add_row(f"  .{setting}={field.default}", escape(field.description or ""))
    return f"[bold]{kind.name}[/]  {escape((kind.__doc__ or '').splitlines()[0])}", facts, settings, ""


def _grid() -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), show_header=False)
    table.add_column(overflow="fold")
    table.add_column(ratio=1)
    return table


def _facts(promise: Guarantee) -> list[tuple[str, str | Text]]:
    """Label and text, a row for each condition and each weakness."""
    rows: list[tuple[str, str | Text]] = [("protects", promise.protects)]
    if promise.unit is not None:
        rows.append(("against", promise.observers))
    rows.append(("verdict", Text(promise.verdict, STYLES[promise.verdict])))
    rows.append(("at ε=1", promise.sentence))
    conditions = [condition for condition in promise.conditions if condition not in promise.weaknesses]
    for label, texts in (("if", conditions), ("weakness", promise.weaknesses)):
        rows += [(label if at == 0 else "", f"- {text}") for at, text in enumerate(texts)]
    return [*rows, ("proof" if promise.verdict == "proven" else "see", promise.reference)]


def _choices(kind: type[Recommender]) -> Iterator[tuple[str, Recommender]]:
    """Every setting that is one of a few words, at every word."""
    for setting, field in kind.model_fields.items():
        for choice in get_args(field.annotation):
            if isinstance(choice, str):
                yield f"{setting}={choice}", kind(**{setting: choice})


def _change(recommender: Recommender, before: Guarantee, specification: PrivacySpecification) -> str:
    """What another specification makes of the promise."""
    try:
        promise = recommender.promise(specification)
    except SpecError as error:
        return f"refused: {error}"
    lines = [f"{promise.verdict}: {promise.sentence}"]
    lines += [f"Declared levels: {promise.declared_levels}."] if promise.levels else []
    lines += [f"- {weakness}" for weakness in promise.weaknesses if weakness not in before.weaknesses]
    return "\n".join(lines)
