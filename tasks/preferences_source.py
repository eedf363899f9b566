"""Where a private table of preferences is and what is declared about it, understood before heavy imports."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from models.privacy.specification import Preferences
from tasks.sources import TableSource


class PreferencesSource(TableSource, Preferences, frozen=True, extra="forbid"):
    """Where the table is, and what is declared about it: safe to show."""

    format: Literal["auto", "csv", "tsv", "parquet"] = "auto"
    columns: dict[Literal["user", "item", "epsilon", "level"], str] = Field(default_factory=dict)
    """Names of the table's columns; those left out are called like this."""

    @model_validator(mode="before")
    @classmethod
    def _somebody_is_not_in_the_table(cls, told: Any) -> Any:
        if isinstance(told, dict) and told.get("default") is None:
            raise ValueError(
                "say what epsilon those have who are not in the table, with --default-epsilon or, in a configuration, "
                "`default`"
            )
        return told

    @property
    def declared(self) -> Preferences:
        """What is public."""
        return Preferences(default=self.default, cap=self.cap, levels=self.levels)

    @property
    def known_format(self) -> str:
        return self.format if self.format != "auto" else self.kind_by_name or "csv"
