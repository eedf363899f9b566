"""What `jali promote` and `jali rollback` say: the gates, what happened, what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING

from rich.table import Table

from tasks.artifacts import markdown_table
from tasks.promotion import CONDITION
from tasks.registered import serving_name

if TYPE_CHECKING:
    from rich.console import Console

    from flows.promote import Decision, RolledBack
    from tasks.gates import Finding

COLOURS = {"pass": "green", "refused": "red", "waived": "yellow", "-": "dim"}
HEADINGS = ("gate", "result", "what was found")


def show(out: Console, decision: Decision) -> None:
    """Print the gates, if any were looked at, and what happened; of a refusal the command's end tells."""
    if decision.findings:
        out.print(gates_table(decision))
        out.print()
    tell(out, decision.faults if decision.outcome == "refused" else decision.lines)


def tell(out: Console, lines: Iterable[str]) -> None:
    for line in lines:
        out.print(line, highlight=False, markup=False)


def gates_table(decision: Decision) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading != HEADINGS[-1], overflow="fold")
    for finding in decision.findings:
        result = f"[{COLOURS[finding.outcome]}]{finding.outcome}[/]"
        table.add_row(finding.gate, result, _plain(told(finding)))
    return table


def _plain(text: str) -> str:
    """As rich prints it: nothing in it is markup."""
    return text.replace("[", "\\[")


def told(finding: Finding) -> str:
    """What a gate found, and what became of its waiver."""
    if not finding.waiver:
        return finding.found
    if finding.outcome == "waived":
        return f"{finding.found} Waived: {finding.waiver}"
    why_not = "This cannot be waived." if finding.is_final else "There was nothing to waive."
    return f"{finding.found} {why_not}"


def outcome_line(decision: Decision) -> str:
    """What happened."""
    version, source = decision.version, decision.source
    if decision.outcome == "champion already":
        return f"{version} is the champion of {source} already. Nothing was changed."
    if decision.outcome == "open":
        return f"{version} would be promoted. Nothing was changed: leave out --dry-run to promote it."
    before = f"before it was {decision.champion}" if decision.champion else "nothing was served before"
    return (
        f"{version} is the champion of {source} now, as version {decision.number} of {serving_name(source)}; {before}."
    )


def next_lines(decision: Decision) -> list[str]:
    """What to do next."""
    if decision.outcome not in ("promoted", "champion already"):
        return []
    of_source = f"--source {quote(decision.source)}"
    lines = ["Next:", f"  jali serve {of_source}   serves it; a server that runs notices it within seconds"]
    if decision.champion and decision.outcome == "promoted":
        lines.append(f"  jali rollback {of_source}   brings {decision.champion} back")
    return lines


def refusal(decision: Decision) -> str:
    """Which gates refused, and what may be done about it."""
    refused = [finding for finding in decision.findings if finding.outcome == "refused"]
    final = [finding.gate for finding in refused if finding.is_final]
    stays = f"{decision.champion} stays the champion" if decision.champion else "nothing is served"
    waivers = " ".join(f"--waive {finding.gate}=REASON" for finding in refused)
    what_next = f"Mend what they found, or say why it does not matter: {waivers}."
    if final:
        what_next = f"What {' and '.join(final)} found cannot be waived."
    gates = " and ".join(finding.gate for finding in refused)
    would = "would be" if decision.is_dry_run else "is"
    gate = "gates" if len(refused) > 1 else "gate"
    return f"{decision.version} {would} refused by the {gate} {gates}; {stays}. {what_next}"


def decision_markdown(decision: Decision) -> str:
    """The whole decision, for whoever looks at it in Prefect."""
    what = refusal(decision) if decision.outcome == "refused" else outcome_line(decision)
    rows = [(finding.gate, finding.outcome, told(finding)) for finding in decision.findings]
    who = decision.who
    lines = [f"# {decision.version}: {decision.outcome}", "", what, "", *_who(who.name, who.at, who.why), ""]
    return "\n".join([*lines, *markdown_table(HEADINGS, rows), "", CONDITION])


def rollback_line(done: RolledBack) -> str:
    """What is served now, and what another rollback brings back."""
    way = done.way
    served = f"version {way.to} of {serving_name(done.source)}"
    left = f"another `jali rollback` brings {way.left} back" if way.left else "nothing was served before"
    return f"{way.reached} is the champion of {done.source} again, as {served}; {left}."


def although_lines(done: RolledBack) -> list[str]:
    """What is served although something speaks against it."""
    return [f"Since it was promoted, something was found about it: {done.although}"] if done.although else []


def rollback_markdown(done: RolledBack) -> str:
    who = done.who
    lines = [f"# {done.way.reached}: rolled back to", "", rollback_line(done), *although_lines(done), ""]
    return "\n".join([*lines, *_who(who.name, who.at, who.why)])


def _who(name: str, at: str, why: str) -> list[str]:
    return [f"- by: {name}", f"- at: {at}", *([f"- why: {why}"] if why else [])]
