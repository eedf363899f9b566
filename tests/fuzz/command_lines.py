"""Command lines: every option with valid, boundary and nonsensical values, and --set with everything."""

from __future__ import annotations

from hypothesis import strategies as st

from models.index import RECOMMENDERS
from models.papers.zhang_2019 import EXPERIMENTS
from tasks.movielens import DATA_SETS
from tasks.rating_files import FORMATS
from tests.fuzz.case import SECRET_USER, Case
from tests.fuzz.ratings_files import SCALES
from tests.fuzz.settings_files import MOSTLY_YAML, beside_good_ratings
from tests.fuzz.tables import ADDRESSES, LEVELS, QUERIES, TABLES

WORDS = ["", " ", "-", "--", "---", "a", "é", "😀", "\udcff", "a\nb", "\x1b[31m", "[/red]", "{0}", "%s", "x" * 5000,
    "~nobody-here/x",
         "nan", "inf", "-inf", "1e999", "0", "-1", "1", "2", "9" * 30, "9" * 5000, "0.5", "1_0", "\u0663", "true",
         "null", "default",
         "../..", "/dev/null", ".", "/", "=", ",", ":", "'", '"', "$(id)", "*", "!", "&&", "--help"]  # fmt: skip
PATHS = ["films.csv", "items.csv", "./films.csv", "../nowhere/films.csv", "nowhere.csv", "films.csv/x", "c.yaml",
    "x" * 300, "~", "~/x.csv",
         "/proc/self/mem", "/dev/full", "/dev/zero", "/dev/tty", "/etc/shadow", "http://127.0.0.1:1/x.csv",
         "sqlite:///films.csv"]  # fmt: skip
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "10",
    "1000",
    "1001",
    "-1",
    "1.5",
    "0.5",
    "1e-6",
    "1e-7",
    "1e3",
    "1001",
    "1e-30",
    "1e-31",
    "1e308",
    "1",
    "2",
    "0.3",
    "0.7",
]
OPTIONS = {
    "--ratings": ["films.csv", "films.csv", *PATHS, *ADDRESSES],
    "--items": ["items.csv", *PATHS],
    "--scale": SCALES,
    "--format": ["auto", *FORMATS, "xml", "CSV"],
    "--columns": [
        "user=user",
        "user=item,item=user",
        "user=user,item=item,rating=rating",
        "who=x",
        "user",
        "=",
        "user=,",
        "user==",
        ",",
    ],
    "--delimiter": [",", ";", "tab", "\\t", "\t", "\n", "\r", '"', "é", "::", "\\", "1", " "],
    "--folds": NUMBERS,
    "--table": TABLES,
    "--query": QUERIES,
    "--checksum": ["sha256:" + "0" * 64, "md5:" + "f" * 32, "sha1:", "sha256:xyz", "crc:1", ":"],
    "--preferences": ["asked.csv", *PATHS],
    "--preferences-table": TABLES,
    "--preferences-query": QUERIES,
    "--default-epsilon": NUMBERS,
    "--cap": NUMBERS,
    "--levels": LEVELS,
}
ONLY_OF_RUN = {
    "--recommenders": [*RECOMMENDERS, ",".join(RECOMMENDERS), "pmf,pmf", "pmf,", " pmf", "magic", "PMF"],
    "--epsilon": NUMBERS,
    "--policy": ["default", "Default", *PATHS],
    "--unit": ["rating", "user", "item", "User"],
    "--delta": NUMBERS,
    "--fraction": NUMBERS,
    "--private-metrics": NUMBERS,
    "--source": ["films", "films.releases", "a/b", "..", ".", "a" * 100, "a" * 101, "-", "films ", "CON"],
    "--report": ["r.json", "[/red].json", "[bold]", "\udcff.json", "nowhere/r.json", ".", "films.csv",
    "./items.csv", "[/red].json", "x" * 300, "r\n.json", "~", "/proc/r.json"],
    "--no-publish": [],
    "--batch": [],
    "--corrections": [],
}  # fmt: skip
OF_REPRODUCE = {name: OPTIONS[name] for name in ("--ratings", "--items", "--scale", "--format", "--delimiter")} | {
    "--page": ["p.md", "films.csv", "nowhere/p.md", "[/red].md", "x" * 300, "."]
}
OF_AUDIT = {name: ONLY_OF_RUN[name] for name in ("--epsilon", "--policy", "--unit", "--delta", "--source")} | {
    "--version": NUMBERS,
    "--runs": [*NUMBERS, "40000", "10000000"],
    "--confidence": [*NUMBERS, "0.95", "0.999999"],
    "--relation": ["add_or_remove", "replace_value", "local", "add or remove"],
}
VALIDATE, RUN = OPTIONS, OPTIONS | ONLY_OF_RUN
GOOD = ("--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1", "--folds", "2")
CONFIGURATION = b"ratings: films.csv\nitems: items.csv\nscale: 1:5:1\nfolds: 2\npublish: false\n"


@st.composite
def assignments(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(RECOMMENDERS)))
    setting = draw(st.sampled_from([*RECOMMENDERS[name].model_fields]))
    value = draw(MOSTLY_YAML | st.sampled_from(NUMBERS) | st.sampled_from(["max", "mean", "als", "true", "1e9", ".5"]))
    well_formed = f"{name}.{setting}={value}"
    odd = [well_formed, "", "=", ".=", f"{name}.=1", f".{setting}=1", f"{name}={value}", f"{name}.{setting}",
        f"{name}.spurce={value}",
           f"magic.{setting}={value}", f"{name}.{setting}.more={value}", f"{name}.model_config=1",
           f"{name}.__class__=1", f"{name}.name=x"]  # fmt: skip
    return draw(st.sampled_from(odd)) if draw(st.integers(0, 5)) == 0 else well_formed


@st.composite
def option(draw: st.DrawFn, options: dict[str, list[str]]) -> list[str]:
    name = draw(st.sampled_from(sorted(options)))
    values = options[name]
    if not values:
        return [name]
    value = draw(st.sampled_from(values) | st.sampled_from(values) | st.sampled_from(values) | st.sampled_from(WORDS))
    return [f"{name}={value}"] if draw(st.integers(0, 4)) == 0 else [name, value]


def experiments() -> st.SearchStrategy[list[str]]:
    known = st.sampled_from(sorted(EXPERIMENTS))
    return st.lists(known | known | known | st.sampled_from(WORDS), max_size=2)


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, ...]:
    command = draw(
        st.sampled_from(["run"] * 6 + ["validate", "validate", "ledger", "recommenders", "fetch", "reproduce", "other"])
    )
    if command == "other":
        return tuple(draw(st.lists(st.sampled_from([*WORDS, "run", "ledger", "show", "--version"]), max_size=3)))
    if command == "recommenders":
        return ("recommenders", *draw(st.lists(st.sampled_from(WORDS), max_size=1)))
    if command == "fetch":
        name = draw(st.sampled_from([*DATA_SETS, *DATA_SETS, "ml-25m", *WORDS]))
        return (
            "fetch",
            name,
            *draw(st.sampled_from([(), ("--to",)])),
            *draw(st.lists(st.sampled_from(PATHS + WORDS), max_size=1)),
        )
    if command == "ledger":
        return (
            "ledger",
            "show",
            *draw(st.sampled_from([(), ("--all",), ("--source",)])),
            *draw(st.lists(st.sampled_from(WORDS), max_size=1)),
        )
    options = {"run": RUN, "validate": VALIDATE, "reproduce": OF_REPRODUCE}[command]
    words = [
        command,
        *(draw(experiments()) if command == "reproduce" else ()),
        *(GOOD if draw(st.integers(0, 3)) else ()),
        *draw(st.sampled_from([(), (), (), ("c.yaml",)])),
    ]
    for _ in range(draw(st.integers(0, 3))):
        words += draw(option(options))
    if command == "run":
        for _ in range(draw(st.integers(0, 2))):
            words += ["--set", draw(assignments())]
    if draw(st.integers(0, 9)) == 0:
        words.insert(
            draw(st.integers(0, len(words))),
            draw(st.sampled_from([*WORDS, "--no-such-option", "--eps", "-x", "extra"])),
        )
    return tuple(words)


@st.composite
def audit_cases(draw: st.DrawFn) -> Case:
    """Of their own: a valid one would take half a minute in a process."""
    name = st.sampled_from([*RECOMMENDERS])
    words = ["audit", draw(name | name | name | st.sampled_from(["magic", *WORDS]))]
    for _ in range(draw(st.integers(0, 2))):
        words += draw(option(OF_AUDIT))
    if draw(st.integers(0, 2)) == 0:
        words += ["--set", draw(assignments())]
    return beside_good_ratings("audit", tuple(words), c_yaml=CONFIGURATION)


@st.composite
def command_cases(draw: st.DrawFn) -> Case:
    words = draw(command_lines())
    ours = {} if words[:1] != ("ledger",) else draw(st.sampled_from([
        {}, {}, {"JALI_LEDGER_URL": ""}, {"JALI_LEDGER_URL": "sqlite:///films.csv"},
        {"JALI_LEDGER_URL": "postgresql://h:port/x"},
        {"JALI_LEDGER_URL": "sqlite://host/x"}, {"JALI_LEDGER_URL": "http://127.0.0.1:1"},
        {"JALI_LEDGER_URL": "sqlite:///."},
    ]))  # fmt: skip
    asked = f"user,epsilon\n{SECRET_USER}-1,0.5\n".encode()
    case = beside_good_ratings("command", words, c_yaml=CONFIGURATION, asked_csv=asked)
    return Case(case.kind, case.arguments, case.files, ours)
