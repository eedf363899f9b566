"""A recommender about to be run: what it is called and what it promises, in words, before a rating is read."""

from __future__ import annotations

from dataclasses import dataclass

from models.index import make_recommender
from models.privacy.guarantee import Guarantee
from models.privacy.specification import PrivacySpecification
from models.private_metrics import PaidMetrics, PrivateMetrics
from models.recommender import CATALOGUE_FROM_RATINGS, Recommender
from models.release import Release


@dataclass(frozen=True)
class Candidate:
    """A recommender with what it promises, and the metrics to be paid for: public, known before a rating is read."""

    recommender: Recommender
    specification: PrivacySpecification
    guarantee: Guarantee
    metrics: PrivateMetrics | None = None

    @classmethod
    def of(cls, release: Release) -> Candidate:
        """What was fitted, as it was offered: the release says it all.

        Raises:
          SpecError: this program knows no such recommender or setting.
          KeyError, ValidationError: the release does not say it.
        """
        about, metrics = release.about, PaidMetrics.of(release)
        return cls(
            make_recommender(about["recommender"], about["settings"]),
            PrivacySpecification.model_validate(about["privacy"]),
            Guarantee.model_validate(about["guarantee"]),
            metrics.price if metrics else None,
        )

    @property
    def name(self) -> str:
        return self.recommender.name

    @property
    def metrics_guarantee(self) -> Guarantee | None:
        """What the metrics of its release cost, and are worth."""
        if self.metrics is None:
            return None
        is_public = CATALOGUE_FROM_RATINGS not in self.guarantee.weaknesses
        return self.metrics.promise(self.specification, public_catalogue=is_public)

    @property
    def guarantees(self) -> list[Guarantee]:
        """Of all that a release costs: its own, and its metrics'."""
        return [promise for promise in (self.guarantee, self.metrics_guarantee) if promise is not None]

    @property
    def epsilon(self) -> float:
        """The most that a release and its metrics cost anybody."""
        return sum(promise.epsilon or 0.0 for promise in self.guarantees)

    @property
    def label(self) -> str:
        """The run's name: recommender, and what a release costs."""
        if self.guarantee.epsilon is None:
            return f"{self.name} (no privacy)"
        unit = "" if self.guarantee.unit == "rating" else f" {self.guarantee.unit}"
        return f"{self.name}{unit} ε={self.guarantee.epsilon_summary}".replace("=≤", "≤")

    @property
    def params(self) -> dict[str, str]:
        """Every setting and every privacy parameter, as text.

        MLflow's comparison preselects the first parameters by name that differ: so privacy comes before settings.
        """
        settings = self.recommender.model_dump(mode="json")
        promise = self.guarantee
        privacy = {
            "epsilon": "inf" if promise.epsilon is None else promise.epsilon_summary,
            "unit": promise.unit or "none",
            "relation": promise.relation or "none",
            "verdict": promise.verdict,
            "delta": f"{promise.delta:g}",
        }
        if promise.epsilon is not None:
            privacy["fraction"] = f"{self.specification.fraction:g}"
            if self.specification.policy is not None:
                policy = self.specification.policy.model_dump(mode="json")
                privacy |= {f"policy.{name}": str(value) for name, value in policy.items()}
            if self.specification.preferences is not None:
                declared = self.specification.preferences.model_dump(mode="json")
                privacy |= {f"preferences.{name}": str(value) for name, value in declared.items()}
            if self.metrics is not None:
                privacy |= {f"metrics.{name}": f"{value:g}" for name, value in self.metrics}
        return {
            "recommender": self.name,
            **{f"privacy.{name}": value for name, value in privacy.items()},
            **{f"setting.{name}": str(value) for name, value in settings.items()},
        }
