"""What whoever watches the registry says to whoever serves: one line of JSON at a time.

Every word says all there is to say, so that one that is lost, or said twice, does no harm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel


class Champion(BaseModel, frozen=True, extra="forbid"):
    """A version to be served, whose two files are in `folder`.

    Attributes:
      sha256: of the files, by name, as they came.
      tags: those of the version that anybody may read.
    """

    name: str
    version: str
    folder: Path
    sha256: dict[str, str]
    tags: dict[str, str] = {}


class Word(BaseModel, frozen=True, extra="forbid"):
    """How things stand.

    Attributes:
      champion: what is to be served; None leaves it as it is.
      in_touch: whether the registry answered.
      refused: the version that should be served and cannot be.
      problem: one sentence, where something is not as it should be.
      refusal: the exit code of a service that has nothing to serve and hears this; None lets it wait.
    """

    champion: Champion | None = None
    in_touch: bool
    refused: str | None = None
    problem: str | None = None
    refusal: Literal[1, 2, 3] | None = None
