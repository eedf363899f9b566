"""What a reproduction says: the table on the terminal, and a page with a section per experiment and data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote as url

from rich.table import Table

from flows.reproduce import Reproduction
from models.errors import EnvironmentFault, SpecError, shown
from models.papers.experiment import VARIANTS
from tasks.figures import experiment_figure, save_figures
from tasks.paths import home_path, require_writable

INTRODUCTION = """# The papers' figures, run again

Written by `jali reproduce`; what stands between two marks is replaced when an experiment is run again.

Each figure is computed three times. *As published (broken)*: the paper's own algorithm, whose accuracy rests on noise
that is drawn anew in every iteration and charged once, and on a start at the V without privacy; it does not have
the guarantee that it claims. *Exact*: the mechanism that the paper's theorem is about, one draw and the closed form:
for DP-PMF conditional on a U that does not depend on the ratings, which it does; for PDP-PMF broken, because
sampling amplifies nothing there. *pdp-histogram*: Jali's own, proven, at the same specification (a proof for added
and removed ratings, which costs a changed one twice as much), without item features.
[guarantees.md](guarantees.md) has the reasons.

The first two are judged as the paper does, by the recommender's own U; pdp-histogram has none and is judged by
fold-in. Predictions are clipped to the scale. All figures were computed from exact ratings and not paid for: on
ratings that are not public they would have to stay inside.
"""


def statements_table(reproduction: Reproduction) -> Table:
    """What the paper says, and what each variant shows."""
    table = Table(box=None, padding=(0, 2, 1, 0), header_style="bold", title_justify="left")
    table.title = f"{reproduction.experiment.title}: {reproduction.job.source}"
    for heading in ("published statement", *VARIANTS):
        table.add_column(heading)
    for row in reproduction.statements:
        table.add_row(*row)
    return table


def require_page(path: str) -> None:
    """Find out before the work whether the page can be written after it.

    Raises:
      SpecError: it is no Markdown file, or holds something else than text.
      EnvironmentFault: it cannot be written.
    """
    require_writable(path, "page", ".md")
    page = home_path(path)
    if page.suffix != ".md":
        raise SpecError(f"the page {shown(path)} must be a Markdown file. Call it, for example, reproduction.md.")
    pictures = page.with_suffix("")
    if pictures.exists() and not pictures.is_dir():
        raise EnvironmentFault(f"the page's pictures go into the folder {shown(pictures)}, and that is a file.")
    try:
        _ = page.read_text("utf-8") if page.exists() else ""
    except UnicodeDecodeError:
        raise SpecError(f"the page {shown(path)} is not UTF-8 text. Convert it, or name another.") from None


def write_page(path: str, reproductions: Sequence[Reproduction]) -> None:
    """Put each reproduction's section and picture into the page at `path`, made when missing.

    Raises:
      EnvironmentFault: it cannot be written.
    """
    page = home_path(path)
    pictures = page.with_suffix("")
    try:
        text = page.read_text("utf-8") if page.exists() else INTRODUCTION
        pictures.mkdir(exist_ok=True)
        for reproduction in reproductions:
            name = f"{reproduction.experiment.name}-{reproduction.job.source}"
            figure = experiment_figure(reproduction.experiment, reproduction.outcomes, reproduction.scale_width)
            save_figures({name: figure}, pictures)
            text = _with_section(text, name, _section(reproduction, f"{url(pictures.name)}/{url(name)}.png"))
        part = page.with_name(f"{page.name}.part")
        part.write_text(text, "utf-8")
        part.replace(page)
    except OSError as error:
        raise EnvironmentFault(f"the page {path} cannot be written ({error.strerror}). Name another file.") from None


def _with_section(text: str, name: str, section: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    marked = f"{begin}{section}{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: marked, text) if pattern.search(text) else f"{text}\n{marked}"


def _section(reproduction: Reproduction, picture: str) -> str:
    experiment = reproduction.experiment
    lines = [
        f"## {experiment.title}: {reproduction.job.source}",
        "",
        f"![{experiment.title}, on {reproduction.job.source}]({picture})",
        "",
        _row(("published statement", *VARIANTS)),
        _row(["---"] * (1 + len(VARIANTS))),
        *(_row(row) for row in reproduction.statements),
        "",
        f"`{reproduction.command}`; bars are standard deviations over folds.",
        "",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
