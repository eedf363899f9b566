"""How what is served is taken back: from the champion to one that was champion before."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from models.errors import EnvironmentFault, Refused, SpecError, quoted, shown
from tasks.decisions import HISTORY, WAS_CHAMPION, Who, history_with
from tasks.gates import Offered, found_since
from tasks.guard import guarded
from tasks.lease import Lease
from tasks.model_card import refresh_card
from tasks.promotion import REPLACES, Aliases, aliases_of, move, note_end, require_unmoved, told_by_mlflow
from tasks.registered import CHECKSUM, checksum, serving_name
from tasks.registry import FROM, RESERVATION
from tasks.released import downloaded
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient

ROLLED_BACK = ("promotion.rolled_back_by", "promotion.rolled_back_at", "promotion.rolled_back_why")
"""Tags of a version that was champion, and was taken back."""


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
      SpecError: no such version was ever champion.
    """
    client = open_tracking(current_state())
    name, before = serving_name(source), aliases_of(client, source)
    versions = {str(found.version): found for found in client.search_model_versions(f"name = '{name}'")}
    served = {number for number, found in versions.items() if WAS_CHAMPION in found.tags}
    served |= versions.keys() & {before.champion, before.previous}
    if to is not None and to not in served:
        has = ", ".join(sorted(served, key=int)) or "none"
        raise SpecError(f"{name} has no version {quoted(to)} that was champion; it has {has}.")
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
        downloaded(name, way.to, folder)
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
def require_nothing_since(source: str, way: Way, who: Who) -> str:
    """What was found since it was promoted about the version that a rollback would bring back; "" where nothing was.

    Raises:
      Refused: something was, and nobody says why it is served all the same.
    """
    found = found_since(_original(source, way))
    if found and not who.why:
        raise Refused(
            f"since it was promoted, something was found about {way.reached}: {found} The champion stays. Name another "
            "version with --to, or say with --because TEXT why this one is served all the same, which is recorded."
        )
    return found


def _original(source: str, way: Way) -> Offered:
    """Where what is found later is noted: the version that was released, or if that is gone its copy."""
    from mlflow.exceptions import MlflowException

    client = open_tracking(current_state())
    model, _, number = way.reached.rpartition("/")
    tags = client.get_model_version(serving_name(source), way.to).tags
    with suppress(MlflowException):
        original = client.get_model_version(model, number).tags
        if original.get(RESERVATION) == tags.get(RESERVATION):  # numbers of a deleted model come again
            tags = original
    return Offered(source, model.removeprefix(f"{source}."), number, tags, Path(), None)


@guarded("The rollback")
def roll_back(source: str, way: Way, who: Who, lease: Lease, although: str = "") -> tuple[str, ...]:
    """Make `way.to` the champion, and the champion what another rollback would bring back.

    Args:
      although: what was found about it since it was promoted.
    Returns:
      What could not be done when it was champion: a sentence each. To roll back again would undo it.

    Raises:
      Refused: something else is served meanwhile, or the lease was lost; the champion is as it was.
      EnvironmentFault: MLflow does not take it.
    """
    name, left = serving_name(source), way.before.champion
    again = f"jali rollback --source {quote(source)} --to {way.to}"
    with told_by_mlflow(
        f"The champion is as it was, or version {way.to} of {name} already: `{again}` makes it that, however it is. "
        "Without --to it may bring back what was to be taken back."
    ):
        client = open_tracking(current_state())
        lease.renew()
        require_unmoved(client, source, way.before)
        tags = client.get_model_version(name, way.to).tags
        client.set_model_version_tag(name, way.to, REPLACES, left or "")
        told = history_with(tags, "brought back", who, although)
        client.set_model_version_tag(name, way.to, HISTORY, told[HISTORY])
        if left is not None:
            for key, text in zip(ROLLED_BACK, (who.name, who.at, who.why), strict=True):
                client.set_model_version_tag(name, left, key, text)
            note_end(client, name, left, "taken back", who)
        move(client, source, way.before, Aliases(way.to, left), lease)
    return _tidied(client, name, way)


def _tidied(client: MlflowClient, name: str, way: Way) -> tuple[str, ...]:
    """Have tags and cards say what is so now; a sentence for each version where they do not.

    Nothing is raised: whoever is told that a rollback failed does it again, and brings back what was taken back.
    """
    faults = []
    for number in filter(None, (way.to, way.before.champion)):
        try:
            if number == way.to:
                for key in client.get_model_version(name, number).tags.keys() & set(ROLLED_BACK):
                    client.delete_model_version_tag(name, number, key)
            refresh_card(client, name, number)
        except Exception:  # its files may be damaged, which may be why it is taken back
            faults.append(f"The description of version {number} of {name} could not be rewritten, and tells of before.")
    return tuple(faults)


way_back_task = unstored_task(way_back, "find the way back")
require_servable_task = unstored_task(require_servable, "see that it loads")
require_nothing_since_task = unstored_task(require_nothing_since, "see what was found since")
roll_back_task = unstored_task(roll_back, "roll back")
