"""The files of a published version, besides the release itself: what runs wherever the version is served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from models.errors import Refused, shown
from models.release import ARRAYS_FILE, RELEASE_FILE
from tasks.publishing import MODEL_SCRIPT, NEEDED_TO_SERVE, RELEASE_CODE
from tasks.registered import RELEASE_FOLDER, files_in

MODEL_FILE, REQUIREMENTS, CONDA, PYTHON = "MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml"
CODE = {MODEL_SCRIPT.name: MODEL_SCRIPT, f"code/{RELEASE_CODE.name}": RELEASE_CODE}
"""What is run, by its place in the version: the files of this program of which it is a copy."""
FILES = {
    MODEL_FILE,
    REQUIREMENTS,
    CONDA,
    PYTHON,
    *CODE,
    *(f"{RELEASE_FOLDER}/{f}" for f in (ARRAYS_FILE, RELEASE_FILE)),
}

LOADER = {
    "loader_module": "mlflow.pyfunc.loaders.code_model",
    "code": "code",
    "env": {"conda": CONDA, "virtualenv": PYTHON},
}
TOLD = {"artifacts", "cloudpickle_version", "model_code_path", "python_version", "streamable"}
"""What else MLmodel says of how to load it."""
TO_BUILD = r"(pip|setuptools|wheel)([<=>]=?[0-9.]+)?"


def require_own_code(folder: Path) -> str:
    """A sentence, if nothing would run of this version but what this Jali ships.

    Raises:
      Refused: there is more, or something else. It should not be loaded, as that would run it.
    """
    found = files_in(folder)
    wrong = [*_other_files(set(found)), *_other_code(found), *_other_settings(found)]
    if wrong:
        raise Refused(f"{' '.join(wrong)} It was not run.")
    return f"what runs is what Jali {version('jali')} ships."


def _other_files(found: set[str]) -> list[str]:
    missing, more = sorted(FILES - found), sorted(found - FILES)
    what = [f"lacks {', '.join(missing)}"] if missing else []
    what += [f"has {shown(', '.join(more))}, which Jali does not write"] if more else []
    return [f"the version {' and '.join(what)}. Restore its files, or release anew."] if what else []


def _other_code(found: Mapping[str, Path]) -> list[str]:
    changed = [name for name, ours in CODE.items() if name in found and found[name].read_bytes() != ours.read_bytes()]
    if not changed:
        return []
    return [
        f"{' and '.join(changed)} of the version {'are' if len(changed) > 1 else 'is'} not what Jali {version('jali')} "
        "ships: another Jali released it, or somebody changed it. Compare it, and say with --waive code=REASON why it "
        "may run; or release anew."
    ]


def _other_settings(found: Mapping[str, Path]) -> list[str]:
    strange = [name for name, is_ours in _SETTINGS.items() if name in found and not is_ours(_yaml(found[name]))]
    if REQUIREMENTS in found and not _is_pinned(found[REQUIREMENTS].read_text(errors="replace").splitlines()):
        strange.append(REQUIREMENTS)
    if not strange:
        return []
    return [
        f"{' and '.join(strange)} of the version would load or install what Jali never asks for. Restore its files, or "
        "release anew."
    ]


def signature_of(folder: Path) -> Any:
    """What the version takes and gives, as its MLmodel says; None where it does not."""
    model = _yaml(folder / MODEL_FILE)
    return model.get("signature") if isinstance(model, dict) else None


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None


def _loads_as_ours(model: Any) -> bool:
    try:
        flavors = dict(model["flavors"])
        ours = flavors.pop("python_function")
        (kept,) = ours["artifacts"].items()
        return (
            not flavors
            and {name: ours.get(name) for name in LOADER} == LOADER
            and Path(ours["model_code_path"]).name == MODEL_SCRIPT.name
            and (kept[0], kept[1]["path"]) == ("release", RELEASE_FOLDER)
            and set(ours) <= {*LOADER, *TOLD}
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return False


def _is_pinned(lines: Any) -> bool:
    """Whether these are versions of the packages that Jali asks for, and of no others."""
    found = [re.fullmatch(r"([A-Za-z0-9_.-]+)==[A-Za-z0-9.+!]+", str(line)) for line in lines]
    return all(found) and {match[1] for match in found if match} == set(NEEDED_TO_SERVE)


def _installs_as_ours(conda: Any) -> bool:
    try:
        *plain, last = conda["dependencies"]
        return (
            set(conda) <= {"channels", "dependencies", "name"}
            and conda["channels"] == ["conda-forge"]
            and all(re.fullmatch(r"(python|pip)[<=>]+[0-9.]+", text) for text in plain)
            and set(last) == {"pip"}
            and _is_pinned(last["pip"])
        )
    except (TypeError, KeyError, ValueError):
        return False


def _builds_as_ours(python: Any) -> bool:
    try:
        return (
            set(python) <= {"python", "build_dependencies", "dependencies"}
            and python["dependencies"] == [f"-r {REQUIREMENTS}"]
            and all(re.fullmatch(TO_BUILD, text) for text in python["build_dependencies"])
        )
    except (TypeError, KeyError):
        return False


_SETTINGS = {MODEL_FILE: _loads_as_ours, CONDA: _installs_as_ours, PYTHON: _builds_as_ours}
