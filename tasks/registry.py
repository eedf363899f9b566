"""What the model registry says of a source's releases so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.guard import guarded
from tasks.ledger import Ledger
from tasks.ledger_book import Head
from tasks.registered import CHAMPION, serving_name
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FROM = "promotion.from"
"""Tag of a version of SOURCE.serving: what it is a copy of, as `SOURCE.RECOMMENDER/NUMBER`."""
RESERVATION, LEDGER, HEAD = "ledger.reservation", "ledger.id", "ledger.head"
"""Tags of a version: which charge paid for it, in which ledger, and that ledger's newest row then."""
SPENT_THEN = "ledger.spent_when_released"
"""The same in words: what was spent on the source, that release included, and of which budget."""


def released_versions(client: MlflowClient, source: str) -> list[ModelVersion]:
    """Every version of the source's recommenders that a ledger paid for."""
    found = client.search_model_versions(f"name LIKE '{source}.%'", max_results=10_000)
    return [version for version in found if version.tags.get("source") == source and LEDGER in version.tags]


def versions_of(client: MlflowClient, recommender: str) -> list[ModelVersion]:
    """Every version of the recommender, of whatever source."""
    found = client.search_model_versions(f"name LIKE '%.{recommender}'", max_results=10_000)
    return [version for version in found if version.name == f"{version.tags.get('source')}.{recommender}"]


def champion_made_of(client: MlflowClient, source: str, origin: str) -> str | None:
    """Number of the champion of SOURCE.serving, if it is a copy of `origin`, `SOURCE.RECOMMENDER/NUMBER`."""
    for model in client.search_registered_models(f"name = '{serving_name(source)}'"):
        number = model.aliases.get(CHAMPION)
        if number is not None and client.get_model_version(model.name, number).tags.get(FROM) == origin:
            return str(number)
    return None


@guarded("Comparing the ledger with the registry")
def require_same_ledger(source: str, ledger: Ledger) -> None:
    """Raise LedgerDoubted unless `ledger` has paid for all that the registry has of this source."""
    versions = released_versions(open_tracking(current_state()), source)
    heads = []
    for version in versions:
        seq, _, seal = version.tags[HEAD].partition(":")
        heads.append(Head(version.tags[LEDGER], int(seq), seal))
    ledger.require_holds(heads, [version.tags[RESERVATION] for version in versions])


require_same_ledger_task = unstored_task(
    require_same_ledger, "compare the ledger with the registry", spends_nothing=True
)
