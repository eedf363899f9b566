"""The bodies of `jali promote` and `jali rollback`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from flows.display import displayed
from flows.terminal import console, prepared
from models.errors import NotPromoted
from tasks.clean_process import started_early
from tasks.progress import stage
from tasks.servers import prefect_server

if TYPE_CHECKING:
    from flows.promote import Decision


def promoted(
    recommender: str, waivers: list[str], unproven: str | None, told: dict[str, str | None], *, dry_run: bool
) -> None:
    """Look at the gates, promote if they let it pass, and print what became of it.

    Raises:
      NotPromoted: a gate refused; what each found was printed.
    """
    try:
        with _prefect() as wait_for_prefect, started_early():
            from flows.promotion_requests import make_promotion

            request = make_promotion(recommender, waivers, unproven, told | ({"dry_run": "true"} if dry_run else {}))
            from flows.promote import promote  # after it, for a typo should not wait for what this brings along

            wait_for_prefect()
            with _told_in_any_case():
                decision = promote(request)
    except NotPromoted as refused:
        _show(cast("Decision", refused.decision))
        raise
    _show(decision)


@contextmanager
def _told_in_any_case() -> Iterator[None]:
    """Print what is served now although Prefect was lost, or somebody interrupts, before the block ends."""
    from flows.promote import settled
    from flows.promote_view import tell

    with settled() as done:
        try:
            yield
        except BaseException:
            for outcome in done:
                tell(console(), outcome.lines)
            raise


@contextmanager
def _prefect() -> Iterator[Callable[[], None]]:
    """A Prefect server that boots while we import what takes seconds; yields a function that waits for it."""
    with displayed(console(stderr=True)), prefect_server(prepared()) as wait_for_prefect:
        stage("Starting Prefect")

        def wait() -> None:
            from tasks.tracking import import_mlflow

            import_mlflow()
            wait_for_prefect()

        yield wait


def _show(decision: Decision) -> None:
    from flows.promote_view import show  # it brings Prefect along, which reads its settings then

    show(console(), decision)


def rolled_back(told: dict[str, str | None]) -> None:
    """Roll back, and print what is served now."""
    with _prefect() as wait_for_prefect:
        from flows.promotion_requests import make_rollback

        request = make_rollback(told)
        from flows.promote import rollback  # likewise

        wait_for_prefect()
        with _told_in_any_case():
            done = rollback(request)
    from flows.promote_view import tell

    tell(console(), done.lines)
