"""The card of a version, from what its release says and its tags: no registry and no ratings here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from models.index import make_recommender
from models.privacy.specification import Policy, PrivacySpecification
from models.private_metrics import PaidMetrics
from models.recommender import CATALOGUE_FROM_RATINGS
from tasks.model_card import LONGEST, model_card, plain

PUBLISHED = {
    "source": "films",
    "ledger.spent_when_released": "ε=3, of a budget of ε=10 for each rating (add or remove)",
}
AUDITED = {
    "audit.result": "within",
    "audit.epsilon_claimed": "1",
    "audit.epsilon_shown": "0.956",
    "audit.confidence": "0.95",
    "audit.runs": "40000",
    "audit.relation": "add_or_remove",
    "audit.at": "2026-11-21 21:30",
    "audit.times": "3",
    "audit.times_exceeded": "1",
}
PROMOTED = {
    "promotion.by": "ada",
    "promotion.at": "2026-11-21 22:00 UTC",
    "promotion.why": "the <b>best</b> so far, [see](http://evil.example)",
    "promotion.from": "films.pdp-histogram/3",
    "promotion.replaces": "1",
    "promotion.waived.metric": "none was paid for",
    "promotion.condition": "that this version was chosen may depend on internal figures",
}


def about(name: str = "pdp-histogram", *, public: bool = True, **privacy: Any) -> dict[str, Any]:
    """What a release says of itself."""
    recommender = make_recommender(name, {})
    specification = PrivacySpecification(**{"epsilon": 1, "relation": recommender.relation, **privacy})
    guarantee = recommender.guarantee(specification, public_catalogue=public)
    return {
        "recommender": name,
        "settings": recommender.model_dump(mode="json"),
        "privacy": specification.model_dump(mode="json"),
        "guarantee": guarantee.model_dump(mode="json"),
    }


def card(told: dict[str, Any], tags: dict[str, str] = PUBLISHED, name: str = "films.pdp-histogram") -> str:
    return model_card(name, told, tags)


def test_a_card_says_what_is_promised_to_whom_and_what_was_spent() -> None:
    said = card(about())
    assert said.startswith(
        "ε=1, verdict **proven**: `pdp-histogram` on **films**. One noisy histogram of ratings per item"
    )
    assert about()["guarantee"]["sentence"] in said
    for fact in (
        "- ε: 1",
        "- δ: 0",
        "- protects: one rating, add or remove",
        "- against: anybody who holds the release, with any other knowledge",
        "- spent when released: ε=3, of a budget of ε=10 for each rating (add or remove)",
        "- proof: docs/guarantees.md\\#pdp-histogram-unit-rating",
    ):
        assert fact in said.splitlines()
    for condition in about()["guarantee"]["conditions"]:
        assert f"- {condition}" in said
    assert "No accuracy is stated: none was paid for." in said
    assert "Never audited: `jali audit pdp-histogram --source films`" in said
    assert "jali promote pdp-histogram VERSION --source films" in said
    assert "### Promotion" not in said


def test_what_makes_a_promise_less_than_proven_is_marked() -> None:
    said = card(about(public=False))
    assert "verdict **conditional**" in said
    assert f"- **weakness:** {CATALOGUE_FROM_RATINGS}" in said
    assert "weakness" not in card(about())


def test_a_card_states_the_accuracy_that_was_paid_for() -> None:
    paid = PaidMetrics(rmse=0.91, low=0.88, high=0.94, says_nothing=False, epsilon=0.5, ratings_per_user=5)
    said = card({**about(), "private_metrics": asdict(paid)})
    assert paid.sentence in said
    assert "none was paid for" not in said


def test_a_card_says_how_audits_of_it_ended() -> None:
    within = card(about(), {**PUBLISHED, **AUDITED})
    assert "**within**: on 2026-11-21 21:30 UTC at least ε=0.956 was shown of the ε=1 that is claimed" in within
    assert "Audits so far: 3; exceeded: 1." in within
    assert "Never audited" not in within
    assert "Not to be promoted" not in within
    exceeded = card(about(), {**PUBLISHED, **AUDITED, "audit.result": "exceeded"})
    assert "**Not to be promoted.**" in exceeded


def test_a_card_of_what_is_served_says_who_promoted_it_and_why_and_shows_their_words_as_written() -> None:
    said = card(about(), {**PUBLISHED, **PROMOTED}, "films.serving")
    assert (
        "Promoted by ada on 2026-11-21 22:00 UTC: the &lt;b>best&lt;/b> so far, \\[see\\](http://evil.example)" in said
    )
    assert "- Copied from films.pdp-histogram/3." in said
    assert "- Took the place of version 1." in said
    assert "- Waived `metric`: none was paid for" in said
    assert "- that this version was chosen may depend on internal figures" in said
    assert "Taken back" not in said
    assert "jali serve --source films" in said
    assert 'load_model("models:/films.serving@champion")' in said


def test_a_card_says_that_a_promotion_was_taken_back() -> None:
    back = {"promotion.rolled_back_by": "bob", "promotion.rolled_back_why": "worse"}
    assert "- Taken back by bob: worse" in card(about(), {**PUBLISHED, **PROMOTED, **back}, "films.serving")
    bare = {**PUBLISHED, "promotion.by": "ada", "promotion.why": "", "promotion.replaces": ""}
    assert "### Promotion\n\n- Promoted by ada\n\n" in card(about(), bare, "films.serving")


def test_the_levels_that_were_declared_are_on_the_card() -> None:
    said = card(about(epsilon=None, policy=Policy()))
    assert "- ε: 0.1..1" in said
    assert "Declared levels: conservative ε=0.1 to 0.2 (54%); moderate" in said


@pytest.mark.parametrize("name", ["pdp-histogram", "dp-pmf", "pdp-pmf"])
def test_a_card_fits_into_mlflows_database_whatever_people_wrote(name: str) -> None:
    wordy = dict.fromkeys(PROMOTED, "because of *this* " * 300)
    wordy |= {f"promotion.waived.{gate}": "no " * 300 for gate in ("verdict", "budget", "metric", "load", "schema")}
    assert len(card(about(name, public=False), {**PUBLISHED, **AUDITED, **PROMOTED})) < LONGEST - 500
    said = card(about(name, public=False), {**PUBLISHED, **AUDITED, **wordy}, "films.serving")
    assert len(said) <= LONGEST
    assert "verdict **conditional**" in said
    assert "**within**" in said


def test_a_release_of_a_recommender_that_this_jali_does_not_know_has_a_card() -> None:
    assert "`tomorrow` on **films**" in card({**about(), "recommender": "tomorrow"})


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("![x](http://evil.example)", "\\!\\[x\\](http://evil.example)"),
        ("<img src=x>", "&lt;img src=x>"),
        ("# Title", "\\# Title"),
        ("| a | b |", "\\| a \\| b \\|"),
        ("@somebody", "&#64;somebody"),
        (":tada: at 12:30:15 UTC: why", "&#58;tada: at 12:30:15 UTC: why"),
        ("one\n\n- two", "one - two"),
        ("&#60;", "&amp;\\#60;"),
        ("`x` \\", "\\`x\\` \\\\"),
    ],
)
def test_text_of_others_is_no_markup(written: str, shown: str) -> None:
    assert plain(written) == shown
