"""What `jali audit` says: what is audited, the table, how to read it, what to do next."""

from __future__ import annotations

from rich.table import Table

from flows.audit import Done
from models.audit.claim import MOST_RUNS
from models.errors import Refused
from tasks.auditing import AUDITS, Subject, Trial
from tasks.audits import EXCEEDED, result_of

STYLES = {True: "red", False: "green"}


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def subject_line(subject: Subject) -> str:
    """What is audited, and that nothing private is."""
    label = subject.candidate.label
    what = f"{label} as described here, and no version"
    if subject.version is not None:
        what = f"{subject.version}, as it was released ({label})"
    return f"Audited: {what}. On made-up ratings alone: nothing private was read, and nothing spent."


def audit_table(trial: Trial) -> Table:
    """One row: what is claimed, what was shown of it, and the verdict."""
    audited, subject = trial.audited, trial.subject
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("recommender", no_wrap=True)
    table.add_column("protects", min_width=14)
    for heading in ("claimed\nε", f"shown at\n{percent(audited.confidence)}", "share", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    protects = f"one {subject.candidate.specification.unit},\n{subject.relation.replace('_', ' ')}"
    style = STYLES[audited.exceeded]
    table.add_row(
        subject.candidate.name,
        protects,
        f"{audited.claim.epsilon:.4g}",
        f"{trial.epsilon_shown:.3g}",
        f"{trial.share:.0%}",
        f"{audited.n_runs:,}",
        f"[{style}]{result_of(trial)}[/]",
    )
    return table


def closing_lines(done: Done) -> list[str]:
    """What stands below the table."""
    trial = done.trial
    audited = trial.audited
    shown = audited.shown
    return [
        *claim_lines(trial),
        f"The worst pair of {audited.n_searched} neighbours: {audited.neighbours.what}. What told them apart best of "
        f"{shown.n_statistics} statistics: {shown.statistic}. {trial.runs_per_minute:,.0f} runs a minute.",
        "Less than the claim is no proof that it holds. More is one that it does not: of a recommender that keeps its "
        f"claim, at most {percent(1 - audited.confidence)} of all audits show more (docs/guarantees.md#audits).",
        *noted_lines(done),
        "Next:",
        f"  jali ui            the figure is in the experiment {AUDITS}, run {done.run_id[:8]}",
        f"  --runs {min(10 * audited.n_runs, MOST_RUNS):<12}shows more of what there is",
    ]


def claim_lines(trial: Trial) -> list[str]:
    """What the figures in the table mean where they are not simply epsilon."""
    subject, claim, shown = trial.subject, trial.audited.claim, trial.audited.shown
    name, lines = subject.candidate.name, []
    if not subject.is_claimed:
        lines.append(
            f"{name} claims nothing for {_differing(subject)}; it is audited as if it claimed ε={claim.epsilon:.4g}."
        )
    elif subject.relation != subject.candidate.guarantee.relation:
        lines.append("A changed rating is one removed and one added: what is claimed for either counts twice.")
    if claim.gaussian is not None and shown.gaussian is not None:
        lines.append(
            f"Charged is Gaussian noise in which one {subject.candidate.specification.unit} moves a release by "
            f"{claim.gaussian:.3g} spreads; {shown.gaussian:.3g} were shown, and the ε above is what that makes at "
            f"δ={claim.delta:g}. Whatever the noise is, ε={shown.epsilon:.3g} is shown at that δ."
        )
    elif claim.delta:
        lines.append(f"Both at δ={claim.delta:g}.")
    if subject.candidate.specification.personalised:
        unit = subject.candidate.specification.unit
        lines.append(f"Claimed is the own epsilon of the {unit} in which the worst pair differs.")
    if subject.candidate.metrics is not None:
        lines.append("The RMSE that it states was paid for separately, and is not audited here.")
    if subject.is_of_batches:
        lines.append("It is a batch: audited are releases with its settings, of which one adds to the other too.")
    return lines


def _differing(subject: Subject) -> str:
    return "changed ratings" if subject.relation == "replace_value" else "added or removed ratings"


def noted_lines(done: Done) -> list[str]:
    """Whether the version says so from now on."""
    version = done.trial.subject.version
    if version is None:
        return []
    return [done.noted or f"Not noted on {version}, which claims nothing of the kind."]


def refuse_if_exceeded(trial: Trial) -> None:
    """Raise Refused where more was shown than is claimed."""
    if result_of(trial) != EXCEEDED:
        return
    subject, audited = trial.subject, trial.audited
    what = subject.candidate.name if subject.version is None else str(subject.version)
    shown = f"ε={trial.epsilon_shown:.4g} was shown at {percent(audited.confidence)} for {audited.neighbours.what}"
    if not subject.is_claimed:
        raise Refused(f"{what} does not protect {_differing(subject)}, and does not claim to: {shown}.")
    raise Refused(
        f"{what} exceeds its claim: ε={audited.claim.epsilon:.4g} is claimed, and {shown}. Do not publish or promote "
        "it; docs/guarantees.md says what is known of it."
    )
