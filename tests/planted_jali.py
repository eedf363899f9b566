"""`jali`, with a known seed in numpy's generators and, for every PLANT named, something that goes wrong.

    python planted_jali.py PLANT,PLANT COMMAND ...

A plant in STAGES makes that stage fail with an exception that quotes the ratings; one in LEAKS lets them out.
Copies of what the process deletes from its temporary folder are kept in the folder that KEEP_DELETED names.
"""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.planted import COUNT, ID, NUMERIC_ID, QUOTED, SEED


def plant_seed() -> None:
    """Whoever asks numpy for fresh entropy gets the planted seed."""
    import numpy as np

    np.random.bit_generator.randbits = lambda bits: SEED  # type: ignore[attr-defined]
    assert np.random.default_rng().bit_generator.seed_seq.entropy == SEED  # type: ignore[attr-defined]


class QuotingError(Exception):
    """Quotes in every way an exception can."""

    def __init__(self) -> None:
        super().__init__(QUOTED)
        self.add_note(QUOTED)

    def __repr__(self) -> str:
        return QUOTED


def fails(error: Callable[[], Exception]) -> Callable[..., Any]:
    def failing(*arguments: Any, **named: Any) -> Any:
        ratings = QUOTED  # a local variable, for tracebacks that show them
        raise error() from ValueError(ratings)

    return failing


def _mlflow_error() -> Exception:
    from mlflow.exceptions import MlflowException

    return MlflowException(QUOTED)


# Each stage: how its guard calls it, where the function that fails is looked up, and what it raises.
STAGES: dict[str, tuple[str, str, str, Callable[[], Exception]]] = {
    "reading": ("Reading the ratings", "tasks.loading", "read_ratings", lambda: OSError(5, QUOTED, QUOTED)),
    "validating": ("Validation", "tasks.validation", "load_suite", QuotingError),
    "dealing": ("Dealing the ratings into folds", "tasks.training", "deal_ratings", lambda: KeyError(QUOTED)),
    "cross-validation": (
        "Cross-validation",
        "tasks.training",
        "client_scores",
        lambda: UnicodeDecodeError("utf-8", QUOTED.encode(), 0, 1, QUOTED),
    ),
    "logging": ("Logging to MLflow", "tasks.tracking", "save_figures", _mlflow_error),
    "final fit": ("The fit for release", "tasks.training", "ExactNoise", lambda: AssertionError(QUOTED)),
    "publishing": ("Publication", "tasks.publishing", "_version_tags", _mlflow_error),
}


def _around(module: str, name: str, also: Callable[..., None]) -> None:
    """Let `also` see the arguments of the function `name` of `module` before it works as ever."""
    place = sys.modules[module]
    before = getattr(place, name)

    def both(*arguments: Any, **named: Any) -> Any:
        also(*arguments, **named)
        return before(*arguments, **named)

    setattr(place, name, both)


def _leak_tag() -> None:
    _around("tasks.publishing", "_log_settings", lambda client, run, *_: client.set_tag(run, "popular", f"{ID}-7"))


def _leak_metric() -> None:
    _around("tasks.publishing", "_log_settings", lambda client, run, *_: client.log_metric(run, "n", COUNT))


def _leak_pickle() -> None:
    def spill(ratings: Any, n_folds: int) -> None:
        with tempfile.NamedTemporaryFile() as file:  # deleted at once
            file.write(base64.b64encode(pickle.dumps(ratings.values)))

    _around("tasks.training", "deal_ratings", spill)


def _leak_seed() -> None:
    from models.privacy.noise import SeededNoise

    def spill(self: SeededNoise, *_: Any, **__: Any) -> None:
        with Path(".jali/noise.log").open("a") as log:
            log.write(f"{self._rng.bit_generator.state}\n{self._rng.bit_generator.seed_seq.entropy:x}\n")  # type: ignore[attr-defined]

    before = SeededNoise.add_discrete_laplace

    def both(self: SeededNoise, *arguments: Any, **named: Any) -> Any:
        spill(self)
        return before(self, *arguments, **named)

    SeededNoise.add_discrete_laplace = both  # type: ignore[method-assign]


def _leak_exception() -> None:
    """Once all is published, out of a task that nobody guards."""
    from prefect import task

    import flows.run

    def failing(run: str, epsilon: float, release: str | None) -> None:
        if release:
            raise ValueError(f"{NUMERIC_ID}")

    flows.run.log_spending_task = task(failing)  # type: ignore[assignment]


def _leak_file_name() -> None:
    _around("tasks.training", "deal_ratings", lambda *_: Path(f".jali/{ID}-3").touch())


LEAKS: dict[str, Callable[[], None]] = {
    "tag": _leak_tag,
    "metric": _leak_metric,
    "pickle": _leak_pickle,
    "seed": _leak_seed,
    "file name": _leak_file_name,
    "exception": _leak_exception,
}


def keep_deleted(folder: Path) -> None:
    """From now on, copy into `folder` what is about to be deleted under the temporary folder."""
    numbers, temporary = count(), tempfile.gettempdir()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("os.remove", "shutil.rmtree"):
            return
        path = os.path.join(os.getcwd(), os.fsdecode(arguments[0]))  # noqa: PTH109, PTH118 - Path would recurse
        if not path.startswith(temporary):
            return
        kept = str(folder / f"{next(numbers)}-{os.getpid()}-{os.path.basename(path)}")  # noqa: PTH119
        if event == "shutil.rmtree" and os.path.isdir(path):  # noqa: PTH112
            shutil.copytree(path, kept)
        elif os.path.isfile(path):  # noqa: PTH113
            shutil.copyfile(path, kept)

    sys.addaudithook(hook)


def plant(plants: list[str]) -> None:
    import flows.run  # noqa: F401 - loads all that is planted in

    plant_seed()
    for name in plants:
        if name in LEAKS:
            LEAKS[name]()
        else:
            _, module, function, error = STAGES[name]
            setattr(sys.modules[module], function, fails(error))


def main() -> None:
    plants = [name for name in sys.argv[1].split(",") if name]
    sys.argv = ["jali", *sys.argv[2:]]
    keep_deleted(Path(os.environ.pop("KEEP_DELETED")))
    import flows.cli

    _around("flows.cli", "_run", lambda *_: plant(plants))  # by then every library has read its settings
    flows.cli.main()


if __name__ == "__main__":
    main()
