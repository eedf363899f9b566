"""From the command line's words to a job: options overlay the configuration file."""

from __future__ import annotations

from typing import Any

import yaml

from flows.job import Job, make_job, plain_yaml, read_config
from models.errors import SpecError, quoted

PROMISES = {"epsilon", "policy", "preferences"}
WAYS_IN = {"table", "query"}
DECLARED = {"default", "cap", "levels"}


def job_from(
    config: str | None,
    *,
    ratings: dict[str, str | None],
    privacy: dict[str, str | None],
    preferences: dict[str, str | None] | None = None,
    assignments: list[str],
    batch: dict[str, bool] | None = None,
    other: dict[str, Any],
) -> Job:
    """The configuration file's settings, overlaid with those given on the command line (None: not given).

    Args:
      config: path of a YAML file, or None.
      ratings: path, format, columns (`user=A,item=B`), delimiter, table, query and checksum of the ratings.
      privacy: epsilon, policy (a path, or `default`), unit, delta, fraction and metrics (their epsilon).
      preferences: path, table and query of the table of preferences; default, cap and levels (`NAME=EPSILON,...`).
      assignments: `RECOMMENDER.SETTING=VALUE`.
      batch: whether to release a batch, and with corrections.
      other: the settings of Job that are one value each.

    Raises:
      SpecError: something is unknown, malformed or contradicts itself.
    """
    told = read_config(config) if config else {}
    if ratings.get("path"):
        told.pop("source", None)
    told |= _given(other)
    _overlay_ratings(told, _given(ratings))
    _overlay_privacy(told, _given(privacy), _given(preferences or {}))
    _overlay_batch(told, batch or {})
    for name, settings in assigned(assignments).items():
        all_settings = told["settings"] = dict(_mapping(told, "settings"))
        all_settings[name] = {**_mapping(all_settings, name), **settings}
    return make_job(told)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _mapping(told: dict[str, Any], name: str) -> dict[str, Any]:
    value = told.get(name) or {}
    if not isinstance(value, dict):
        raise SpecError(f"{name} in the configuration must hold `setting: value` lines; see docs/jali.example.yaml.")
    return value


def _overlay_ratings(told: dict[str, Any], given: dict[str, Any]) -> None:
    if not given:
        return
    if "columns" in given:
        given["columns"] = _pairs(given["columns"], "--columns")
    if given.get("delimiter") in ("\\t", "tab"):
        given["delimiter"] = "\t"
    if "path" in given:  # other ratings: how to read the file's, and what they are called, is not theirs
        told["ratings"] = given
        return
    if isinstance(told.get("ratings"), str):
        told["ratings"] = {"path": told["ratings"]}
    told["ratings"] = _replaced(_mapping(told, "ratings"), given, WAYS_IN)


def _overlay_privacy(told: dict[str, Any], given: dict[str, Any], preferences: dict[str, Any]) -> None:
    if preferences:
        given["preferences"] = _overlaid_preferences(_mapping(_mapping(told, "privacy"), "preferences"), preferences)
    if not given:
        return
    given |= policy_read(given)
    before = _mapping(told, "privacy")
    if "metrics" in given and isinstance(before.get("metrics"), dict):  # how many ratings of a user may stay
        given["metrics"] = {**before["metrics"], "epsilon": given["metrics"]}
    told["privacy"] = _replaced(before, given, PROMISES)


def policy_read(given: dict[str, Any]) -> dict[str, Any]:
    """The policy that is given by its path, as the file has it; nothing where none is."""
    if given.get("policy", "default") == "default":
        return {}
    return {"policy": read_config(given["policy"], "policy")}


def _overlay_batch(told: dict[str, Any], given: dict[str, bool]) -> None:
    before = told.get("batch")
    if given.get("corrections") and not (given.get("batch") or before):
        raise SpecError("--corrections says what a batch may do; give --batch too.")
    if given.get("corrections"):
        told["batch"] = {**(before if isinstance(before, dict) else {}), "corrections": True}
    elif given.get("batch") and not isinstance(before, dict):
        told["batch"] = {}


def _overlaid_preferences(before: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "levels" in given:
        given["levels"] = _pairs(given["levels"], "--levels")
    if "path" in given:  # another table: what is declared may stay, and how to read it may not
        before = {name: value for name, value in before.items() if name in DECLARED}
    return _replaced(before, given, WAYS_IN)


def _replaced(before: dict[str, Any], given: dict[str, Any], alternatives: set[str]) -> dict[str, Any]:
    """`before` overlaid with what is given; one of the alternatives replaces the others."""
    gone = alternatives if alternatives & set(given) else set()
    return {**{name: value for name, value in before.items() if name not in gone}, **given}


def _pairs(text: str, option: str) -> dict[str, str]:
    pairs = [part.split("=", 1) for part in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise SpecError(f"{option} takes NAME=VALUE pairs separated by commas; found {quoted(text)}.")
    return {pair[0]: pair[1] for pair in pairs}


def assigned(assignments: list[str]) -> dict[str, dict[str, Any]]:
    """Settings by recommender from `RECOMMENDER.SETTING=VALUE`.

    Raises:
      SpecError: one is not of that form.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in assignments:
        target, equals, value = text.partition("=")
        name, dot, key = target.partition(".")
        if not (equals and dot and name and key):
            raise SpecError(f"--set takes RECOMMENDER.SETTING=VALUE, such as pmf.n_factors=10; found {quoted(text)}.")
        try:
            settings.setdefault(name, {})[key] = plain_yaml(value)
        except yaml.YAMLError:
            raise SpecError(f"the value in --set {quoted(text)} is no number, word or list.") from None
    return settings
