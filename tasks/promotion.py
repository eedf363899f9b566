"""The registered model SOURCE.serving: what is served, and how it becomes so.

Its alias `champion` is what answers, `previous` what a rollback brings back. A version says in its tag
`promotion.replaces` what was champion before it; `previous` repeats that, and is written before `champion` moves. So
whatever is cut off, `champion` is a version that passed its gates, and where both aliases are alike, which is where a
move was cut off, the tag says what a rollback brings back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import EnvironmentFault, Refused, SpecError, shown
from tasks.decisions import HISTORY, WAS_CHAMPION, What, Who, history_with
from tasks.gates import Champion, Finding, Offered
from tasks.guard import LOST, guarded
from tasks.lease import Lease
from tasks.model_card import refresh_card
from tasks.model_files import signature_of
from tasks.registered import CHAMPION, CHECKSUM, CONDITION_TAG, PREVIOUS, checksum, serving_name
from tasks.registry import FROM, versions_of
from tasks.released import downloaded
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

DECISION = "promotion."
REPLACES = "promotion.replaces"
BY, AT, WHY = "promotion.by", "promotion.at", "promotion.why"
RESULTS, WAIVED = "promotion.gates", "promotion.waived."
"""Tags of a version of SOURCE.serving: what was champion before; who last decided to make it champion, when (UTC) and
why; what the gates found, and what was waived. All of them begin alike, and no version brings any along."""
LAST_REFUSAL = "promotion.last_refusal"
"""Tag of a version that was refused."""

CONDITION = (
    "The guarantee covers the release. That this version was chosen, and when, may depend on figures computed from "
    "exact ratings that were not paid for."
)
SERVING_NOTE = (
    "What is served of **{source}**: copies of versions that passed the gates of `jali promote`. `champion` answers, "
    "`previous` is what `jali rollback` brings back. Move the aliases with these two: MLflow's own buttons ask no gate."
)
LONGEST_FOUND = 400
"""Characters of what a gate found that a tag keeps; Prefect's artifact has all."""


@dataclass(frozen=True)
class Aliases:
    """Version numbers in SOURCE.serving; None where there is none."""

    champion: str | None = None
    previous: str | None = None


@guarded("Reading the registry")
def find_offered(recommender: str, source: str | None, number: str | None) -> tuple[str, str]:
    """Source and number of the version to promote: as named, or the newest of the only source that has one.

    Raises:
      SpecError: there is none as named, or several sources have one and none is named.
    """
    numbers: dict[str, list[int]] = {}
    for version in versions_of(open_tracking(current_state()), recommender):
        numbers.setdefault(version.tags["source"], []).append(int(version.version))
    chosen = _source(f"a version of {recommender}", sorted(numbers), source)
    there = sorted(numbers[chosen])
    if number is not None and int(number) not in there:
        raise SpecError(
            f"{chosen}.{recommender} has no version {number}; it has {', '.join(map(str, there[-10:]))}. Leave VERSION "
            "out for the newest."
        )
    return chosen, number or str(there[-1])


@guarded("Reading the registry")
def find_serving(source: str | None) -> str:
    """The source to roll back: as named, or the only one that serves anything.

    Raises:
      SpecError: it serves nothing, or several do and none is named.
    """
    client = open_tracking(current_state())
    found = client.search_registered_models(f"name LIKE '%{serving_name('')}'", max_results=1000)
    return _source("a champion", sorted(model.name.removesuffix(serving_name("")) for model in found), source)


def _source(what: str, known: Sequence[str], told: str | None) -> str:
    if told in known or (told is None and len(known) == 1):
        return told or known[0]
    have = ", ".join(map(shown, known))
    if not known:
        raise SpecError(f"no source has {what} here. `jali run` releases, and `jali promote` serves what is released.")
    if told is None:
        raise SpecError(f"several sources have {what}: {have}. Name one with --source.")
    raise SpecError(f"{shown(told)} does not have {what} here; {have} has. Name that with --source.")


@guarded("Reading the version")
def open_offered(recommender: str, source: str, number: str, folder: Path) -> Offered:
    """A version with its files, downloaded into `folder`; what is wrong with them the gates say."""
    client = open_tracking(current_state())
    name = f"{source}.{recommender}"
    tags = client.get_model_version(name, number).tags
    release, fault = None, ""
    try:
        release = downloaded(name, number, folder)
    except EnvironmentFault as error:
        fault = str(error)
    return Offered(source, recommender, number, tags, folder, release, fault)


@guarded("Reading the registry")
def open_champion(source: str, folder: Path) -> tuple[Aliases, Champion | None]:
    """What is served now, with its files in `folder`."""
    client = open_tracking(current_state())
    aliases = aliases_of(client, source)
    if aliases.champion is None:
        return aliases, None
    name = serving_name(source)
    release = None
    with suppress(EnvironmentFault):  # the gate that compares says so
        release = downloaded(name, aliases.champion, folder)
    origin = client.get_model_version(name, aliases.champion).tags.get(FROM, f"{name}/{aliases.champion}")
    return aliases, Champion(aliases.champion, origin, release, signature_of(folder))


@guarded("Reading the registry")
def copy_that_serves(offered: Offered) -> str | None:
    """Number of the version in SOURCE.serving that is a copy of this one; None where there is none."""
    client = open_tracking(current_state())
    found = _copy_of(client, offered)
    return None if found is None else str(found.version)


def _copy_of(client: MlflowClient, offered: Offered) -> ModelVersion | None:
    """By what MLflow itself wrote as it copied, and by where its files are: numbers of a deleted model come again."""
    where = client.get_model_version_download_uri(offered.model, offered.number)
    for version in client.search_model_versions(f"name = '{serving_name(offered.source)}'", max_results=10_000):
        is_copy = version.source == _uri(offered.model, offered.number)
        if is_copy and client.get_model_version_download_uri(version.name, version.version) == where:
            return version
    return None


def _uri(name: str, number: str) -> str:
    return f"models:/{name}/{number}"


@guarded("The promotion")
def serve(offered: Offered, findings: Sequence[Finding], before: Aliases, who: Who, lease: Lease) -> str:
    """Copy the version into SOURCE.serving and make it the champion; returns its number there.

    Args:
      before: what was served when the gates compared.

    Raises:
      Refused: something else is served meanwhile, the tags are others, or the lease was lost; the champion stays.
      EnvironmentFault: MLflow does not take it.
    """
    with told_by_mlflow("Promote again: that looks first what is served."):
        client = open_tracking(current_state())
        lease.renew()  # before a copy is touched that somebody else may have made the champion meanwhile
        require_unmoved(client, offered.source, before)
        _require_as_looked_at(client, offered)
        number = _copied(client, offered, _promotion_tags(offered, findings, before, who), who)
        refresh_card(client, serving_name(offered.source), number)
        if before.champion is not None:
            note_end(client, serving_name(offered.source), before.champion, "replaced", who)
        move(client, offered.source, before, Aliases(number, before.champion), lease)
    return number


def _require_as_looked_at(client: MlflowClient, offered: Offered) -> None:
    """Raise Refused if the version's tags are others than those that the gates saw, and that the copy will have."""
    if client.get_model_version(offered.model, offered.number).tags != offered.tags:
        raise Refused(
            f"the tags of {offered} were changed while the gates looked, by an audit or by hand. Nothing was moved. "
            "Promote again: the gates then look at what the tags say now."
        )


def _promotion_tags(offered: Offered, findings: Sequence[Finding], before: Aliases, who: Who) -> dict[str, str]:
    results = {finding.gate: [finding.outcome, finding.found[:LONGEST_FOUND]] for finding in findings}
    waived = {f"{WAIVED}{finding.gate}": finding.waiver for finding in findings if finding.outcome == "waived"}
    return {
        FROM: f"{offered.model}/{offered.number}",
        REPLACES: before.champion or "",
        CHECKSUM: checksum(offered.folder),
        BY: who.name,
        AT: who.at,
        WHY: who.why,
        RESULTS: json.dumps(results, ensure_ascii=False),
        CONDITION_TAG: CONDITION,
        **waived,
    }


def _copied(client: MlflowClient, offered: Offered, decision: Mapping[str, str], who: Who) -> str:
    """Number of the copy in SOURCE.serving, with the tags of the version as the gates saw them, and the decision's."""
    name = serving_name(offered.source)
    wanted = {**{key: text for key, text in offered.tags.items() if not key.startswith(DECISION)}, **decision}
    there = _copy_of(client, offered)
    if there is not None:
        kept = {WAS_CHAMPION: there.tags[WAS_CHAMPION]} if WAS_CHAMPION in there.tags else {}
        wanted |= {**kept, **history_with(there.tags, "promoted", who)}
        _retag(client, name, str(there.version), there.tags, wanted)
        return str(there.version)
    _ensure_serving(client, offered.source)
    version = client.get_model_version(offered.model, offered.number)
    # What MLflow's copy_model_version does; but it has its tags from the first moment, and nothing is printed.
    made = client.create_model_version(
        name,
        _uri(offered.model, offered.number),
        version.run_id,
        tags={**wanted, **history_with({}, "promoted", who)},
        model_id=version.model_id,
    )
    return str(made.version)


def _retag(client: MlflowClient, name: str, number: str, before: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for key, text in wanted.items():
        if before.get(key) != text:
            client.set_model_version_tag(name, number, key, text)
    for key in before.keys() - wanted.keys():
        client.delete_model_version_tag(name, number, key)


def _ensure_serving(client: MlflowClient, source: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        note = SERVING_NOTE.format(source=source)
        client.create_registered_model(serving_name(source), tags={"source": source}, description=note)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def aliases_of(client: MlflowClient, source: str) -> Aliases:
    found = client.search_registered_models(f"name = '{serving_name(source)}'")
    pointing = dict(found[0].aliases) if found else {}
    champion, previous = (pointing.get(alias) for alias in (CHAMPION, PREVIOUS))
    return Aliases(champion and str(champion), previous and str(previous))


def note_end(client: MlflowClient, name: str, number: str, what: What, who: Who) -> None:
    """Note on the champion, while it still is, that it was one and what ends that."""
    tags = client.get_model_version(name, number).tags
    client.set_model_version_tag(name, number, WAS_CHAMPION, who.at)
    client.set_model_version_tag(name, number, HISTORY, history_with(tags, what, who)[HISTORY])


def require_unmoved(client: MlflowClient, source: str, before: Aliases) -> None:
    """Raise Refused if the aliases are no longer where they were."""
    if aliases_of(client, source) != before:
        raise Refused(
            f"what {serving_name(source)} serves was changed meanwhile, by hand or from elsewhere. Nothing was moved. "
            "Look at it in the registry (jali ui), and do it again."
        )


def move(client: MlflowClient, source: str, before: Aliases, after: Aliases, lease: Lease) -> None:
    """Move the aliases, if they are where they were. The new champion has its tag `promotion.replaces` already."""
    lease.renew()
    require_unmoved(client, source, before)
    name = serving_name(source)
    if after.previous is not None:
        client.set_registered_model_alias(name, PREVIOUS, after.previous)
    assert after.champion is not None
    client.set_registered_model_alias(name, CHAMPION, after.champion)


@guarded("Noting the refusal")
def note_refusal(offered: Offered, findings: Sequence[Finding], who: Who) -> None:
    """Write down on the version that it was refused, by which gates, who asked and why."""
    refused = {f.gate: f.found[:LONGEST_FOUND] for f in findings if f.outcome == "refused"}
    told = json.dumps({"by": who.name, "at": who.at, "why": who.why, "gates": refused}, ensure_ascii=False)
    with told_by_mlflow("The version was refused all the same."):
        client = open_tracking(current_state())
        client.set_model_version_tag(offered.model, offered.number, LAST_REFUSAL, told)


@contextmanager
def told_by_mlflow(what_next: str) -> Iterator[None]:
    """What MLflow refuses or cannot do is one sentence, and `what_next` another."""
    from mlflow.exceptions import MlflowException

    try:
        yield
        return
    except MlflowException as error:
        if error.error_code in LOST:
            reason = "MLflow, or the disk or database behind it, no longer does its work."
        else:
            reason = f"MLflow did not take the decision ({error.error_code})."
    raise EnvironmentFault(f"{reason} {what_next}")


find_offered_task = unstored_task(find_offered, "find the version")
find_serving_task = unstored_task(find_serving, "find what is served")
open_offered_task = unstored_task(open_offered, "read the version")
open_champion_task = unstored_task(open_champion, "read the champion")
copy_that_serves_task = unstored_task(copy_that_serves, "look for a copy")
serve_task = unstored_task(serve, "promote")
note_refusal_task = unstored_task(note_refusal, "note the refusal")
