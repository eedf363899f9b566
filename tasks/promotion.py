"""The registered model SOURCE.serving: what is served, how it becomes so, and how it is taken back.

Its alias `champion` is what answers, `previous` what a rollback brings back. A version says in its tag
`promotion.replaces` what was champion before it; `previous` repeats that, and is written before `champion` moves. So
whatever is cut off, `champion` is a version that passed its gates, and where both aliases are alike, which is where a
move was cut off, the tag says what a rollback brings back.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import EnvironmentFault, Refused, SpecError, quoted, shown
from models.release import Release, ReleaseError
from tasks.gates import Champion, Finding, Offered
from tasks.guard import LOST, guarded
from tasks.lease import Lease
from tasks.model_card import refresh_card
from tasks.model_files import signature_of
from tasks.registered import CHECKSUM, CONDITION_TAG, RELEASE_FOLDER, checksum, download_version
from tasks.registry import CHAMPION, PREVIOUS, serving_name, versions_of
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FROM, REPLACES = "promotion.from", "promotion.replaces"
BY, AT, WHY = "promotion.by", "promotion.at", "promotion.why"
RESULTS, WAIVED = "promotion.gates", "promotion.waived."
"""Tags of a version of SOURCE.serving: what it is a copy of, what was champion before; who made it champion, when (UTC)
and why; what the gates found, and what was waived."""
LAST_REFUSAL = "promotion.last_refusal"
"""Tag of a version that was refused."""
ROLLED_BACK = ("promotion.rolled_back_by", "promotion.rolled_back_at", "promotion.rolled_back_why")
"""Tags of a version that was champion, and was taken back."""

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
class Who:
    """Whose decision it is, when, and why; all three are stored and shown."""

    name: str
    at: str
    why: str

    @classmethod
    def now(cls, why: str | None) -> Who:
        """As this account, and the name that MLflow knows it by, where that is another."""
        names = dict.fromkeys((_account(), os.environ.get("MLFLOW_TRACKING_USERNAME", "")))
        return cls(" as ".join(filter(None, names)), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", why or "")


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


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
        release = _downloaded(name, number, folder)
    except EnvironmentFault as error:
        fault = str(error)
    return Offered(source, recommender, number, tags, folder, release, fault)


def _downloaded(name: str, number: str, folder: Path) -> Release:
    """All files of a version, in `folder`, and the release that they hold.

    Raises:
      EnvironmentFault: they are damaged or gone.
    """
    from mlflow.exceptions import MlflowException  # seconds to import

    try:
        download_version(name, number, folder)
        return Release.load(folder / RELEASE_FOLDER)
    except (ReleaseError, MlflowException, OSError) as error:
        reason = str(error) if isinstance(error, ReleaseError) else "MLflow does not find its files. Restore them."
    raise EnvironmentFault(f"version {number} of {name}: {reason}")


@guarded("Reading the registry")
def open_champion(source: str, folder: Path) -> tuple[Aliases, Champion | None]:
    """What is served now, with its files in `folder`."""
    client = open_tracking(current_state())
    aliases = _aliases(client, source)
    if aliases.champion is None:
        return aliases, None
    name = serving_name(source)
    release = None
    with suppress(EnvironmentFault):  # the gate that compares says so
        release = _downloaded(name, aliases.champion, folder)
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
      Refused: something else is served meanwhile, or the lease was lost; the champion is as it was.
      EnvironmentFault: MLflow does not take it.
    """
    with _told_by_mlflow("Look with `jali promote --dry-run`, and promote again."):
        client = open_tracking(current_state())
        lease.renew()  # before a copy is touched that somebody else may have made the champion meanwhile
        tags = _promotion_tags(offered, findings, before, who)
        number = _copied(client, offered, tags)
        refresh_card(client, serving_name(offered.source), number)
        _move(client, offered.source, before, Aliases(number, before.champion), lease)
    return number


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


def _copied(client: MlflowClient, offered: Offered, tags: Mapping[str, str]) -> str:
    """Number of the copy in SOURCE.serving, with the tags of the version as they are now, and these."""
    name = serving_name(offered.source)
    version = client.get_model_version(offered.model, offered.number)
    wanted = {**{key: text for key, text in version.tags.items() if key != LAST_REFUSAL}, **tags}
    there = _copy_of(client, offered)
    if there is not None:
        _retag(client, name, str(there.version), there.tags, wanted)
        return str(there.version)
    _ensure_serving(client, offered.source)
    # What MLflow's copy_model_version does; but it has its tags from the first moment, and nothing is printed.
    made = client.create_model_version(
        name, _uri(offered.model, offered.number), version.run_id, tags=wanted, model_id=version.model_id
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


def _aliases(client: MlflowClient, source: str) -> Aliases:
    found = client.search_registered_models(f"name = '{serving_name(source)}'")
    pointing = dict(found[0].aliases) if found else {}
    champion, previous = (pointing.get(alias) for alias in (CHAMPION, PREVIOUS))
    return Aliases(champion and str(champion), previous and str(previous))


def _move(client: MlflowClient, source: str, before: Aliases, after: Aliases, lease: Lease) -> None:
    """Move the aliases, if they are where they were. The new champion has its tag `promotion.replaces` already."""
    lease.renew()
    if _aliases(client, source) != before:
        raise Refused(
            f"what {serving_name(source)} serves was changed meanwhile, by hand or from elsewhere. Nothing was moved. "
            "Look at it in the registry (jali ui), and do it again."
        )
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
    with _told_by_mlflow("The version was refused all the same."):
        client = open_tracking(current_state())
        client.set_model_version_tag(offered.model, offered.number, LAST_REFUSAL, told)


@dataclass(frozen=True)
class Way:
    """A rollback: from which version of SOURCE.serving to which.

    Attributes:
      left, reached: what they are copies of, as `SOURCE.RECOMMENDER/NUMBER`.
    """

    before: Aliases
    to: str
    left: str
    reached: str


@guarded("Reading the registry")
def way_back(source: str, to: str | None) -> Way:
    """Where a rollback leads: to the version named, or to what was champion before.

    Raises:
      Refused: nothing was, or it is no longer there.
      SpecError: no such version was ever served.
    """
    client = open_tracking(current_state())
    name, before = serving_name(source), _aliases(client, source)
    versions = {str(found.version): found for found in client.search_model_versions(f"name = '{name}'")}
    served = {number: found for number, found in versions.items() if AT in found.tags}
    if to is not None and to not in served:
        has = ", ".join(sorted(served, key=int)) or "none"
        raise SpecError(f"{name} has no version {quoted(to)} that was promoted; it has {has}.")
    champion = versions.get(before.champion or "")
    target = to or before.previous
    if to is None and champion is not None and target == before.champion:  # a move was cut off here
        target = champion.tags.get(REPLACES)
    if target is None or target not in versions:
        raise Refused(
            f"nothing was champion of {shown(source)} before, or it was deleted: there is nothing to roll back to. "
            "`jali promote` makes another version the champion."
        )
    if target == before.champion:
        raise Refused(f"version {target} of {name} is the champion already. Nothing was changed.")
    left = champion.tags.get(FROM, "") if champion is not None else ""
    return Way(before, target, left, versions[target].tags.get(FROM, f"{name}/{target}"))


@guarded("The rollback")
def require_servable(source: str, way: Way, folder: Path) -> None:
    """Raise Refused unless the files that a rollback would bring back are there, and as they were promoted."""
    name = serving_name(source)
    try:
        _downloaded(name, way.to, folder)
        promoted = open_tracking(current_state()).get_model_version(name, way.to).tags.get(CHECKSUM)
        reason = "" if promoted == checksum(folder) else "its files are not those that were promoted."
    except EnvironmentFault as fault:
        reason = str(fault)
    if reason:
        raise Refused(
            f"a rollback to version {way.to} of {name} would serve what does not work: {reason} The champion stays. "
            "Restore the files, name another version with --to, or promote one."
        )


@guarded("The rollback")
def roll_back(source: str, way: Way, who: Who, lease: Lease) -> None:
    """Make `way.to` the champion, and the champion what another rollback would bring back.

    Raises:
      Refused: something else is served meanwhile, or the lease was lost; the champion is as it was.
      EnvironmentFault: MLflow does not take it.
    """
    name, left = serving_name(source), way.before.champion
    with _told_by_mlflow("Look with `jali ui`, and roll back again."):
        client = open_tracking(current_state())
        lease.renew()
        client.set_model_version_tag(name, way.to, REPLACES, left or "")
        if left is not None:
            for key, text in zip(ROLLED_BACK, (who.name, who.at, who.why), strict=True):
                client.set_model_version_tag(name, left, key, text)
        _move(client, source, way.before, Aliases(way.to, left), lease)
        for key in client.get_model_version(name, way.to).tags.keys() & set(ROLLED_BACK):
            client.delete_model_version_tag(name, way.to, key)
        for number in filter(None, (way.to, left)):
            with suppress(EnvironmentFault):  # what is taken back may be damaged, which may be why
                refresh_card(client, name, number)


@contextmanager
def _told_by_mlflow(what_next: str) -> Iterator[None]:
    """What MLflow refuses is one sentence; what it cannot do, tasks/guard.py says."""
    from mlflow.exceptions import MlflowException

    try:
        yield
        return
    except MlflowException as error:
        if error.error_code in LOST:
            raise
        reason = error.error_code
    raise EnvironmentFault(f"MLflow did not take the decision ({reason}). {what_next}")


find_offered_task = unstored_task(find_offered, "find the version")
find_serving_task = unstored_task(find_serving, "find what is served")
open_offered_task = unstored_task(open_offered, "read the version")
open_champion_task = unstored_task(open_champion, "read the champion")
copy_that_serves_task = unstored_task(copy_that_serves, "look for a copy")
serve_task = unstored_task(serve, "promote")
note_refusal_task = unstored_task(note_refusal, "note the refusal")
way_back_task = unstored_task(way_back, "find the way back")
require_servable_task = unstored_task(require_servable, "see that it loads")
roll_back_task = unstored_task(roll_back, "roll back")
