"""A model card: what a version is, what it promises and to whom, in Markdown for MLflow's page of the version.

Made of public things alone: what the release says of itself, and the version's tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from models.index import RECOMMENDERS
from models.privacy.guarantee import Guarantee
from models.private_metrics import KEPT_AS, PaidMetrics
from tasks.audit_history import AT, CLAIMED, CONFIDENCE, EXCEEDED, RELATION, RESULT, RUNS, SHOWN, TIMES, TIMES_EXCEEDED
from tasks.registered import CHAMPION, serving_name
from tasks.registry import SPENT_THEN
from tasks.released import release_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

LONGEST = 5000
"""Characters that MLflow's database keeps of a description."""
LONGEST_SAID = 300
"""Of what a person wrote; the tags hold the whole."""

SPARE = ("Use", "Limits", "Accuracy", "Promotion", "Audits")
"""What a card that is too long goes without, in this order."""

SPECIAL = re.compile(r"[\\`*_{}\[\]#!~|]")
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", "@": "&#64;"})
"""Where a backslash is shown as one by MLflow."""
EMOJI = re.compile(r"(?<!\d):(?=\S+?:)")

IS_ITEMS = "What left is a matrix of items: it holds no user, and whoever asks it brings their own ratings."
LIMITS = (
    "It promises privacy, not accuracy: the noise is the same for few ratings as for many, and on small data, or at "
    "small ε, it may outweigh what they say.",
    "Items that few have rated are predicted from the others and from public features; items that came later are "
    "unknown to it.",
    "The promise is of this release. All releases of a source add up (`jali ledger show`), and which of them somebody "
    "chose by figures that were not paid for, such as those of cross-validation, is not covered.",
    "It cannot be called back: who withdraws is left out of later releases, and stays in this one.",
)


def model_card(name: str, about: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Markdown of at most 5,000 characters for a version of the registered model `name`.

    Args:
      about: what the release says of itself (`Release.about`).
      tags: the version's.
    """
    promise = Guarantee.model_validate(about["guarantee"])
    recommender, source = str(about["recommender"]), tags.get("source", name)
    sections = {
        "": _headline(recommender, source, promise),
        "Promise": _promise(promise, tags),
        "Accuracy": _accuracy(about),
        "Audits": _audits(recommender, source, tags),
        "Promotion": _promotion(tags),
        "Use": _use(name, recommender, source),
        "Limits": _bullets(LIMITS),
    }
    return _fitted({title: text for title, text in sections.items() if text})


def refresh_card(client: MlflowClient, name: str, number: str) -> None:
    """Write a version's card anew, after its tags changed.

    Raises:
      EnvironmentFault: the version's files, which say what it promises, are damaged or gone.
    """
    card = model_card(name, release_of(name, number).about, client.get_model_version(name, number).tags)
    client.update_model_version(name, number, card)


def _headline(recommender: str, source: str, promise: Guarantee) -> str:
    kind = RECOMMENDERS.get(recommender)
    what = f" {plain((kind.__doc__ or '').splitlines()[0])}" if kind else ""
    epsilon = f"ε={promise.epsilon_summary}".replace("=≤", "≤")  # first: MLflow's list shows two dozen characters
    return f"{epsilon}, verdict **{promise.verdict}**: `{recommender}` on **{plain(source)}**.{what}\n\n{IS_ITEMS}"


def _promise(promise: Guarantee, tags: Mapping[str, str]) -> str:
    facts = {
        "ε": promise.epsilon_summary,
        "δ": f"{promise.delta:g}",
        "protects": promise.protects,
        "against": promise.observers,
        "spent when released": tags.get(SPENT_THEN, ""),
        "proof": promise.reference,
    }
    listed = _bullets([f"{label}: {plain(text)}" for label, text in facts.items() if text])
    levels = [f"Declared levels: {plain(promise.declared_levels)}."] if promise.levels else []
    marks = dict.fromkeys(promise.weaknesses, "**weakness:** ")
    conditions = [marks.get(condition, "") + plain(condition) for condition in promise.conditions]
    return "\n\n".join([plain(promise.sentence), listed, *levels, "Conditions:", _bullets(conditions)])


def _accuracy(about: Mapping[str, Any]) -> str:
    kept = about.get(KEPT_AS)
    return plain(PaidMetrics(**kept).sentence) if kept else "No accuracy is stated: none was paid for."


def _audits(recommender: str, source: str, tags: Mapping[str, str]) -> str:
    if RESULT not in tags:
        return f"Never audited: `jali audit {recommender} --source {quote(source)}` tries to show that it loses more."
    said = {name: plain(tags.get(name, "?")) for name in (RESULT, AT, SHOWN, CLAIMED, RELATION, CONFIDENCE, RUNS)}
    line = (
        f"**{said[RESULT]}**: on {said[AT]} UTC at least ε={said[SHOWN]} was shown of the ε={said[CLAIMED]} that is "
        f"claimed ({said[RELATION]}, confidence {said[CONFIDENCE]}, {said[RUNS]} runs on made-up ratings). "
    )
    line += f"Audits so far: {plain(tags.get(TIMES, '?'))}; exceeded: {plain(tags.get(TIMES_EXCEEDED, '?'))}."
    return f"{line} **Not to be promoted.**" if tags[RESULT] == EXCEEDED else line


def _promotion(tags: Mapping[str, str]) -> str:
    """What the tags promotion.* say; empty where it was not promoted."""
    start = "promotion."
    said = {
        name.removeprefix(start): plain(text, LONGEST_SAID) for name, text in tags.items() if name.startswith(start)
    }
    if not said.get("by"):
        return ""
    lines = [_decision("Promoted", said, "")]
    lines += [f"Copied from {said['from']}."] if said.get("from") else []
    lines += [f"Took the place of version {said['replaces']}."] if said.get("replaces") else []
    lines += [
        f"Waived `{name.removeprefix('waived.')}`: {why}" for name, why in said.items() if name.startswith("waived.")
    ]
    lines += [_decision("Taken back", said, "rolled_back_")] if said.get("rolled_back_by") else []
    return _bullets([*lines, *([said["condition"]] if said.get("condition") else [])])


def _decision(what: str, said: Mapping[str, str], of: str) -> str:
    by, at, why = (said.get(f"{of}{name}") for name in ("by", "at", "why"))
    when, because = f" on {at}" if at else "", f": {why}" if why else ""
    return f"{what} by {by}{when}{because}"


def _use(name: str, recommender: str, source: str) -> str:
    is_served = name == serving_name(source)
    version = f"{name}@{CHAMPION}" if is_served else f"{name}/VERSION"
    of_source = f"--source {quote(source)}"
    how = f"jali serve {of_source}" if is_served else f"jali promote {recommender} VERSION {of_source}"
    return (
        "To recommend items to people from their own ratings, which need not leave them, and to study; not to learn "
        f'what anybody rated.\n\n```\n{how}\nmlflow.pyfunc.load_model("models:/{version}").predict(\n'
        '    pandas.DataFrame([{"ratings": [{"item": "ITEM", "rating": 5}], "n": 10}]))\n```'
    )


def _bullets(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _fitted(sections: dict[str, str]) -> str:
    """The sections as one text, without some where all would be too long."""
    for spare in ("", *SPARE):
        sections = {title: text for title, text in sections.items() if title != spare or not title}
        card = "\n\n".join(f"### {title}\n\n{text}" if title else text for title, text in sections.items())
        if len(card) <= LONGEST:
            return card
    return f"{card[: LONGEST - 1]}…"


def plain(text: str, most: int = LONGEST) -> str:
    """`text` in one line that Markdown shows as it is written: no link, picture, heading or emoji of anybody's."""
    line = " ".join(text.split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    escaped = SPECIAL.sub(r"\\\g<0>", line).translate(ENTITIES)
    return EMOJI.sub("&#58;", escaped)
