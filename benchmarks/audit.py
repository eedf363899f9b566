"""What an audit shows of every recommender, and of every copy of one that is wrong.

    PYTHONPATH=. python benchmarks/audit.py [--only PART...] [--quick]

Noise is ExactNoise, and the neighbours are searched for, or with --quick those that show the copy. --only takes the
lines whose name holds one of them. Every line is at 95% confidence by itself: one in twenty honest ones may exceed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from models.audit.audit import DEFAULT_RUNS, Audited, audit
from models.audit.neighbours import Neighbours
from models.factorization.dp_pmf import DPPMF
from models.factorization.pdp_pmf import PDPPMF
from models.privacy.noise import ExactNoise, NoiseSource
from models.privacy.specification import Policy, Preferences, PrivacySpecification, Relation
from models.recommender import Recommender
from tests.models.audit.broken import COPIES, HONEST, Copy

ASKED = PrivacySpecification(preferences=Preferences(default=0.5, levels={"little": 0.1, "much": 1}))
CHANGED = PrivacySpecification(epsilon=1, relation="replace_value")
CHANGED_POLICY = PrivacySpecification(policy=Policy(), relation="replace_value")

LOUD, FEWER_RUNS = 4000, 8000
"""A copy that so many runs find out, with neighbours that are given, is searched with so many."""


@dataclass(frozen=True)
class Line:
    what: str
    recommender: Recommender
    specification: PrivacySpecification
    n_runs: int
    relation: Relation | None = None
    noise: NoiseSource | None = None
    pair: Neighbours | None = None


def ours() -> Iterator[Line]:
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        yield Line(f"pdp-histogram, ε={epsilon:g}", HONEST, PrivacySpecification(epsilon=epsilon), 40_000)
    yield Line("pdp-histogram, ε=1, changed rating", HONEST, PrivacySpecification(epsilon=1), 40_000, "replace_value")
    yield Line("pdp-histogram, default policy", HONEST, PrivacySpecification(policy=Policy()), 40_000)
    yield Line("pdp-histogram, preferences", HONEST, ASKED, 40_000)
    for epsilon in (1.0, 5.0):
        users = PrivacySpecification(epsilon=epsilon, unit="user")
        yield Line(f"pdp-histogram, user ε={epsilon:g}", HONEST, users, 40_000)
    yield Line("dp-pmf exact", DPPMF(), CHANGED, 4000)
    yield Line("dp-pmf exact, added or removed", DPPMF(), CHANGED, 4000, "add_or_remove")
    yield Line("pdp-pmf exact, default policy", PDPPMF(), CHANGED_POLICY, 4000)
    yield Line("dp-pmf alg2", DPPMF(solver="alg2"), CHANGED, 1000)
    yield Line("pdp-pmf alg2, default policy", PDPPMF(solver="alg2"), CHANGED_POLICY, 1000)


def copies(*, given: bool) -> Iterator[Line]:
    for copy in COPIES:
        searched = FEWER_RUNS if copy.n_runs <= LOUD else DEFAULT_RUNS
        yield Line(
            _name(copy),
            copy.recommender,
            copy.specification,
            copy.n_runs if given else searched,
            noise=copy.source(ExactNoise()),
            pair=copy.pair if given else None,
        )


def _name(copy: Copy) -> str:
    epsilon = copy.specification.epsilon
    return copy.what if epsilon in (None, 1) else f"{copy.what} (ε={epsilon:g})"


def row(line: Line, found: Audited, seconds: float) -> str:
    claim, shown = found.claim, found.shown
    claimed, of_it = f"ε={claim.epsilon:.3g}", f"ε={shown.epsilon:.3g}"
    if claim.gaussian is not None and shown.gaussian is not None:
        claimed, of_it = f"{claimed}, μ={claim.gaussian:.3g}", f"{of_it}, μ={shown.gaussian:.3g}"
    n_runs = found.n_runs + found.n_search_runs
    verdict = "exceeded" if found.exceeded else "within"
    cells = (line.what, claimed, of_it, f"{found.share:.0%}", verdict, found.neighbours.what, shown.statistic)
    return "| " + " | ".join([*cells, f"{n_runs:,}", f"{seconds:.0f}", f"{60 * n_runs / seconds:,.0f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()

    print("| what | claimed | shown | of it | | neighbours | told apart by | runs | s | runs a minute |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in (*ours(), *copies(given=arguments.quick)):
        if not any(part in line.what for part in arguments.only):
            continue
        began = perf_counter()
        found = audit(
            line.recommender,
            line.specification,
            relation=line.relation,
            n_runs=line.n_runs,
            noise=line.noise,
            pair=line.pair,
        )
        print(row(line, found, perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
