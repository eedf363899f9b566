"""Configurations and policies: YAML that is wrong in its values, its shape, its tags, its size or its bytes."""

from __future__ import annotations

import yaml
from hypothesis import strategies as st

from expectations.suites import Minimums
from flows.job import Batches, Job, Privacy, plain_yaml
from models.index import RECOMMENDERS
from models.privacy.specification import Policy
from tasks.rating_files import RatingsSource
from tests.fuzz.case import Case
from tests.fuzz.ratings_files import FORMATS_AS_WRITTEN, ITEMS, ROWS, damaged_bytes

LONG = "x" * 5000
FRAGMENTS = [
    "", "~", "null", "yes", "true", "0", "1", "-1", "2", "3.5", "-0", "1e-7", "1e400", "-1e400", "1e-400", ".nan",
    ".inf",
    "-.inf", "0x10", "08", "010", "0o7", "0b1", "1_000", "9" * 30, "9" * 5000, "1:30", "1:5:1", "'1'", '""', "' '",
    "a", "é",
    "😀", '"\\0"', '"a\\0b"', '"\\uD800"', '"a\\nb"', "'[/red]'", "'{0}'", "'%s'", LONG, f"'{LONG}/{LONG}'",
    "~nobody-here/x",
    "2001-01-01", "2001-99-99", "2001-01-01T99:99:99Z", "=", "<<", "[]", "[1]", "[a, b]", "[[]]", "{}", "{a: b}",
    "{1: 2}",
    "{[1]: 2}", "{? {a: b} : c}", "{null: 1}", "{1.5: 1, true: 2}", "[{}]", "&x [*x]", "&x {a: *x}", "*missing",
    "!!set {a}",
    "!!binary aGk=", "!!binary '%'", "!!int abc", "!!int ''", "!!float x", "!!float ''", "!!bool maybe",
    "!!timestamp x",
    "!!omap [a]", "!!omap [a: 1]", "!!pairs [a: 1]", "!!null x", "!!str 5", "!!map [a]", "!!seq {a: 1}", "!mine x",
    "! x",
    "!!python/object/apply:os.system ['touch pwned']", "!!python/name:os.system", "!!python/tuple [1]", "default",
    "auto",
    "pmf", "pmf,pmf", "pdp-histogram", "magic", "rating", "user", "films.csv", "items.csv", "nowhere.csv", ".", "/",
    "/dev/null",
    "/proc/self/mem", "films.csv/x", "c.yaml", "[" * 60 + "]" * 60, "[" * 3000, "{a: " * 900 + "1" + "}" * 900,
    "|\n   text",
    "? a", "- a", "a: b", "a: b: c", "\t", "@", "`", "%", "#", "'", '"', "{", "]", "&", "*", "!", "--- a", "...",
    "<<: {a: 1}",
]  # fmt: skip


def is_yaml(fragment: str) -> bool:
    try:
        plain_yaml(f"{{a: {fragment}}}")
    except yaml.YAMLError:
        return False
    return True


VALUES = [fragment for fragment in FRAGMENTS if is_yaml(fragment)]
SENSIBLE = {
    "source": ["films", "x.y", "'2001'", "2001"], "ratings": ["films.csv", "{path: films.csv}", "~"],
    "path": ["films.csv"],
    "items": ["items.csv", "~"], "scale": ["1:5:1", "0.5:5:0.5", "'1:5'", "{low: 1, high: 5}"], "format": ["auto",
    "csv"],
    "columns": ["{}", "{user: user}", "{user: item, item: user}"], "delimiter": ["','", "';'", "~", '"\\t"'],
    "recommenders": ["pmf", "[pmf]", "pdp-histogram", "'pmf, pdp-histogram'"], "folds": ["2", "3", "24", "25",
    "'2'", "2.0"],
    "settings": ["{}", "{pmf: {}}", "~"], "publish": ["true", "no", "'false'", "1"], "report": ["r.json", "~"],
    "epsilon": ["1", "1e-6", "1000", "'0.5'", "~"], "delta": ["1e-6", "1e-30", "0.5"], "fraction": ["1", "0.001", "~"],
    "unit": ["rating", "user"], "policy": ["default", "~", "{}", "{key: é}"], "conservative": ["0", "0.5", "1"],
    "moderate": ["0", "0.5", "1"], "epsilon_conservative": ["1e-6", "0.1", "0.2"], "epsilon_moderate": ["0.1",
    "0.2", "0.9"],
    "epsilon_liberal": ["0.2", "1", "1000"], "group_by": ["rating", "user", "item"], "key": ["a", "''", "é", "x y"],
    "validation": ["{}"], "privacy": ["{}", "{unit: user}", "{policy: default}"], "n_factors": ["1", "3"],
    "threshold": ["max", "mean", "0.5"], "metrics": ["0.1", "'2'", "~", "{epsilon: 1}"], "ratings_per_user": ["1", "5"],
    "batch": ["true", "no", "{}", "{corrections: true}"], "corrections": ["no"],
} | {f"min_{what}": ["0", "1", "2", "4", "24", "25"] for what in ("ratings", "users", "items",
    "ratings_per_user")}  # fmt: skip
MOSTLY_YAML = st.sampled_from(VALUES) | st.sampled_from(VALUES) | st.sampled_from(VALUES) | st.sampled_from(FRAGMENTS)
KEYS = [
    *Job.model_fields,
    "spurce",
    "1",
    "null",
    "[a]",
    "true",
    "<<",
    "? x",
    "''",
    "'[/red]'",
    LONG,
    "é",
    "!!int 3",
    "__class__",
]
INNER = {
    "ratings": [*RatingsSource.model_fields],
    "privacy": [*Privacy.model_fields],
    "validation": [*Minimums.model_fields],
    "batch": [*Batches.model_fields],
    "settings": [*RECOMMENDERS],
}
GOOD = {
    "ratings": "films.csv", "items": "items.csv", "scale": "1:5:1", "folds": "2", "publish": "false",
    "source": "films",
    "recommenders": "[pmf, pdp-histogram]", "privacy": "{epsilon: 1}",
}  # fmt: skip
BOMBS = [
    "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n" for p,
    n in zip("abcdefgh", "bcdefghi", strict=True)),
    "settings: {pmf: &a {n_factors: &b [*a, *a]}}\n",
    "".join(f"k{n}: {n}\n" for n in range(2_000)),
    "- " * 3000 + "a\n",
    "[" * 9_000,
    "? " * 3000 + "a\n",
    "x: '" + "a" * 100_000 + "'\n",
    "--- {}\n--- {}\n",
    "%YAML 9.9\n--- {}\n",
    "%TAG ! tag:x,2000:\n--- !y {}\n",
    "\ufeffscale: 1:5:1\n",
    "folds: 2\nfolds: 3\n",
    "<<: &a {folds: 2}\n<<: *a\n",
    "m: &m {folds: 3}\n<<: [*m, *m]\n",
    "<<: 3\n", "<<: [1]\n", "null", "3", "a", "[]", "{}", "---", "...", "\x85", "\u2028", "a:\tb\n", "\tfolds: 2\n",
]  # fmt: skip


def value_of(key: str) -> st.SearchStrategy[str]:
    """Mostly what could stand there, and often enough what could not."""
    return st.sampled_from(SENSIBLE[key]) | MOSTLY_YAML if key in SENSIBLE else MOSTLY_YAML


@st.composite
def nested(draw: st.DrawFn, keys: list[str]) -> str:
    """A flow mapping with some of these keys, or with strange ones, and a fragment or a mapping under each."""
    chosen = draw(
        st.lists(
            st.sampled_from(keys) | st.sampled_from(keys) | st.sampled_from(KEYS), min_size=1, max_size=3, unique=True
        )
    )
    parts = []
    for key in chosen:
        inside = {"policy": [*Policy.model_fields], "columns": ["user", "item", "rating"]}.get(key)
        if key in RECOMMENDERS:
            inside = [*RECOMMENDERS[key].model_fields]
        deeper = inside is not None and draw(st.booleans())
        value = draw(nested(inside or keys)) if deeper else draw(value_of(key))
        parts.append(f"{key}: {value}")
    return "{" + ", ".join(parts) + "}"


@st.composite
def settings_files(draw: st.DrawFn) -> bytes:
    lines = dict(GOOD)
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from([*KEYS, *INNER, *INNER, *INNER]))
        if key in INNER and draw(st.booleans()):
            lines[key] = draw(nested(INNER[key]))
        else:
            lines[key] = draw(value_of(key))
    raw = "".join(f"{key}: {value}\n" for key, value in lines.items()).encode()
    return raw if draw(st.integers(0, 5)) else draw(damaged_bytes(raw))


def beside_good_ratings(kind: str, arguments: tuple[str, ...], **files: bytes) -> Case:
    form = FORMATS_AS_WRITTEN["csv"]
    good = form.write(list(form.header), [list(row) for row in ROWS])
    named = {name.replace("_", "."): content for name, content in files.items()}
    return Case(kind, arguments, {form.name: good, "items.csv": ITEMS.encode()} | named)


@st.composite
def settings_cases(draw: st.DrawFn) -> Case:
    content = draw(st.sampled_from(BOMBS).map(str.encode) | settings_files() | settings_files() | settings_files())
    arguments = draw(
        st.sampled_from(
            [("validate", "c.yaml"), ("run", "c.yaml"), ("run", "c.yaml"), ("run", "--no-publish", "c.yaml")]
        )
    )
    return beside_good_ratings("settings", arguments, c_yaml=content)


@st.composite
def policy_cases(draw: st.DrawFn) -> Case:
    keys = [*Policy.model_fields]
    chosen = draw(
        st.lists(st.sampled_from(keys) | st.sampled_from(keys) | st.sampled_from(KEYS), min_size=1, max_size=3)
    )
    raw = "".join(f"{key}: {draw(value_of(key))}\n" for key in chosen).encode()
    content = (raw, raw, draw(damaged_bytes(raw)), draw(st.sampled_from(BOMBS)).encode())[draw(st.integers(0, 3))]
    good = ("--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1", "--folds", "2")
    return beside_good_ratings("policy", ("run", *good, "--policy", "p.yaml"), p_yaml=content)
