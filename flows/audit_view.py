"""What `jali audit` says: what is audited, the table, how to read it, what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from models.audit.claim import MOST_RUNS
from models.errors import EnvironmentFault, Refused
from tasks.audit_history import EXCEEDED, UNCLAIMED, WITHIN, told, told_share
from tasks.auditing import Subject, Trial
from tasks.views import AUDITS

if TYPE_CHECKING:
    from rich.console import Console

    from flows.audit import Done

VERDICTS = {
    WITHIN: f"[green]{WITHIN}[/]",
    EXCEEDED: f"[red]{EXCEEDED}[/]",
    UNCLAIMED: f"[red]{EXCEEDED}[/]\n({UNCLAIMED})",
}


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def show(out: Console, done: Done) -> None:
    """Print all that is said of an audit."""
    out.print(subject_line(done.trial.subject), highlight=False, markup=False)
    out.print()
    out.print(audit_table(done.trial))
    out.print()
    for line in [*reading_lines(done.trial), *next_lines(done)]:
        out.print(line, highlight=False, markup=False)


def subject_line(subject: Subject) -> str:
    """What is audited, and that nothing private is."""
    label = subject.candidate.label
    what = f"{label} as described, and no version."
    if subject.passed_over:
        what = f"{label} as described, and so not {subject.passed_over}."
    if subject.version is not None:
        what = (
            f"the code installed here, with the settings of {subject.version} ({label}); the numbers in the version "
            "itself are not looked at."
        )
    return f"Audited: {what} All ratings were made up: nothing private was read, and nothing spent."


def audit_table(trial: Trial) -> Table:
    """One row: what is claimed, what was shown of it, and the verdict."""
    audited, subject = trial.audited, trial.subject
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("recommender", no_wrap=True)
    table.add_column("protects", min_width=8)
    for heading in ("claimed\nε", "shown\n(at least)", "share\nof claim", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_row(
        subject.candidate.name,
        f"one {subject.candidate.specification.unit},\n{subject.relation.replace('_', ' ')}",
        f"{audited.claim.epsilon:.4g}",
        trial.shown_in_words,
        told_share(audited.share),
        f"{audited.n_runs:,}",
        VERDICTS[trial.result],
    )
    return table


def description(trial: Trial) -> str:
    """The same in words, for the MLflow run."""
    audited = trial.audited
    verdict = (
        f"ε={audited.claim.epsilon:.4g} is claimed, and at least ε={trial.shown_in_words} was shown "
        f"({told_share(audited.share)}): {trial.result}."
    )
    return "\n\n".join([subject_line(trial.subject), verdict, *reading_lines(trial)])


def reading_lines(trial: Trial) -> list[str]:
    """How to read the table."""
    audited = trial.audited
    shown, sure = audited.shown, percent(audited.confidence)
    apart = f"What told it apart best of {shown.n_statistics} statistics: {shown.statistic}."
    lines = [*claim_lines(trial), f"{_pair_line(trial)} {apart} {trial.runs_per_minute:,.0f} runs a minute."]
    by_chance = (
        f"of a recommender that keeps its claim, at most {percent(1 - audited.confidence)} of all audits show more"
    )
    if audited.exceeded:
        reference = trial.subject.candidate.guarantee.reference
        proven = f"This is a proof, at {sure}, that more is lost than ε={audited.claim.epsilon:.4g}"
        return [*lines, f"{proven}: {by_chance}. What is known of it: {reference}"]
    return [
        *lines,
        f"Of a mechanism that hides exactly as much as is claimed, so many runs show about "
        f"ε={trial.epsilon_of_the_worst:.2g}.",
        f"More than the claim would be a proof, at {sure}, that it does not hold ({by_chance}). Less is no proof that "
        "it does (docs/guarantees.md#audits).",
    ]


def _pair_line(trial: Trial) -> str:
    audited = trial.audited
    if trial.subject.pair is not None:
        return (
            "There was no search: tried again was the pair of data sets that exceeded before, and stands. "
            f"It is {audited.neighbours.what}."
        )
    return (
        f"Of {audited.n_searched} pairs of made-up data sets the one easiest to tell apart: {audited.neighbours.what}."
    )


def next_lines(done: Done) -> list[str]:
    """What the version says from now on, and what to do next."""
    trial = done.trial
    audited, lines = trial.audited, noted_lines(done)
    following = []
    if done.run_id:
        where = f"Model training, experiment {AUDITS}, run {done.run_id[:8]}"  # MLflow opens on GenAI
        following.append(f"  jali ui            {where}: the figure")
    if not audited.exceeded and audited.n_runs < MOST_RUNS:
        following.append(f"  --runs {min(10 * audited.n_runs, MOST_RUNS):<12}shows more of what there is")
    return [*lines, "Next:", *following] if following else lines


def claim_lines(trial: Trial) -> list[str]:
    """What the figures in the table mean where they are not simply epsilon."""
    subject, claim, shown = trial.subject, trial.audited.claim, trial.audited.shown
    name, unit, lines = subject.candidate.name, subject.candidate.specification.unit, []
    counts_twice = subject.is_claimed and subject.relation != subject.candidate.guarantee.relation
    if not subject.is_claimed:
        lines.append(
            f"{name} claims nothing for {_differing(subject)}; it is audited as if it claimed ε={claim.epsilon:.4g}."
        )
    elif counts_twice:
        lines.append("A changed rating is one removed and one added: what is claimed for either counts twice.")
    if claim.gaussian is not None and shown.gaussian is not None:
        mu = told(shown.gaussian, claim.gaussian, shown.gaussian > claim.gaussian)
        lines.append(
            f"The noise is Gaussian. Claimed: one {unit} moves a release by at most {claim.gaussian:.3g} standard "
            f"deviations; shown: at least {mu}. The ε above is what that makes at δ={claim.delta:g}; without assuming "
            f"Gaussian noise: ε={shown.epsilon:.3g}."
        )
    elif claim.delta:
        lines.append(f"Both at δ={claim.delta:g}.")
    if subject.candidate.specification.personalised:
        own = "twice the own epsilon" if counts_twice else "the own epsilon"
        lines.append(f"Claimed is {own} of the {unit} in which the pair below differs.")
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
    if done.noted is not None:
        return [done.noted]
    if version is None or done.trial.subject.is_claimed:  # what was to be noted, and could not be, is told at the end
        return []
    return [f"Not noted on {version}, which claims nothing of the kind."]


def require_kept_and_within(done: Done) -> None:
    """Say at the end what went wrong, if anything did.

    Raises:
      Refused: more was shown than is claimed.
      EnvironmentFault: not so, but MLflow did not take the result.
    """
    lost = f"What came out is not kept as it should be: {' '.join(done.faults)}" if done.faults else ""
    if done.trial.audited.exceeded:
        raise Refused(" ".join(filter(None, [_exceeds(done.trial), lost])))
    if lost:
        raise EnvironmentFault(lost[0].lower() + lost[1:])


def _exceeds(trial: Trial) -> str:
    subject, audited = trial.subject, trial.audited
    what = subject.candidate.name if subject.version is None else str(subject.version)
    shown = f"ε={trial.shown_in_words} was shown at {percent(audited.confidence)} for {audited.neighbours.what}"
    if not subject.is_claimed:
        return f"{what} does not protect {_differing(subject)}, and does not claim to: {shown}."
    claimed = f"ε={audited.claim.epsilon:.4g} is claimed"
    return f"{what} exceeds its claim: {claimed}, and {shown}. Do not publish or promote it."
