"""Files are 0600 and folders 0700 from the moment they are made, not only in the end: the system calls say so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import JALI, PRIVATE, environment, privacy_of, processes_of, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

CALLS = "umask,open,openat,creat,mkdir,mkdirat,mknod,mknodat,chmod,fchmod,fchmodat"
FOR_ALL = 0o077


@pytest.fixture(scope="module")
def strace() -> str:
    """The program, where there is one and it may trace."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed: it shows with which mode every file is made")
    if subprocess.run([program, "-f", "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    return program


def traced(strace: str, trace: Path, command: list[str]) -> list[str]:
    """The command line that runs `command` from a permissive umask and notes what it makes in `trace`."""
    watch = [strace, "-f", "-qq", "--seccomp-bpf", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(trace)]
    return ["/bin/sh", "-c", 'umask 022; exec "$@"', "sh", *watch, *command]


def too_open(trace: Path, folder: Path) -> Iterator[str]:
    """Every call that lets anybody but the owner at something under `folder`, where relative paths are too.

    Once the umask is 077, and as long as nobody loosens it, whatever mode is asked for, none but the owner gets any.
    """
    is_private = False
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r'\d+\s+(\w+)\((?:AT_FDCWD, |\d+, )?(?:"([^"]*)")?(.*)', line)
        if call is None:  # the second half of a call that was interrupted
            continue
        name, path, rest = call.groups()
        if name == "umask":
            is_private = int(line.split("(")[1].split(")")[0].split()[0], 8) & FOR_ALL == FOR_ALL
            if not is_private:
                yield line
        elif path is not None and path.startswith("/") and not path.startswith(str(folder)):
            continue
        elif "chmod" in name:
            mode = re.search(r"\b0\d+", rest or line)
            if mode is None or int(mode[0], 8) & FOR_ALL:
                yield line
        elif not is_private and ("open" not in name or "O_CREAT" in rest):
            yield line


def test_whatever_a_run_makes_is_its_owners_alone_from_the_start(strace: str, tmp_path: Path) -> None:
    arguments = write_ratings(tmp_path, made_up_ratings(n_users=30))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    trace = tmp_path.with_name(f"{tmp_path.name}.trace")
    run = [JALI, "run", *arguments, "--folds", "2", "--report", "report.json"]
    process = subprocess.Popen(
        traced(strace, trace, run),
        cwd=tmp_path,
        env=environment(TMPDIR=str(temporary)),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        said = []
        for line in lines:
            said.append(line)
            if "Opening MLflow" in line:  # the Prefect server answers by then
                servers = processes_of(tmp_path)
                assert servers != []
                assert {privacy_of(server) for server in servers} == {PRIVATE}
    assert process.wait(timeout=60) == 0, "".join(said)
    made = trace.read_text(errors="replace")
    for name in (
        ".jali",
        "mlflow.db",
        "prefect.db",
        "release.py",
        "items.safetensors",
        "report.json.part",
        "temporary",
    ):
        assert name in made, name
    assert list(too_open(trace, tmp_path)) == []


@pytest.mark.parametrize(
    ("program", "n_found"),
    [
        ("os.umask(0o077); open('a', 'w'); os.mkdir('b'); os.chmod('a', 0o700)", 0),
        ("open('a', 'w'); os.umask(0o077)", 1),
        ("os.mkdir('a'); os.umask(0o077)", 1),
        ("os.umask(0o077); os.umask(0); open('a', 'w')", 2),
        ("os.umask(0o077); open('a', 'w'); os.chmod('a', 0o640)", 1),
        ("os.umask(0o077); f = open('a', 'w'); os.fchmod(f.fileno(), 0o604)", 1),
        ("os.umask(0o077); os.mkdir('a'); os.chmod(os.path.abspath('a'), 0o755)", 1),
    ],
)
def test_what_is_made_too_open_for_a_moment_is_found(strace: str, tmp_path: Path, program: str, n_found: int) -> None:
    trace = tmp_path.with_name(f"{tmp_path.name}.trace")
    command = [sys.executable, "-S", "-c", f"import os; {program}"]
    subprocess.run(traced(strace, trace, command), cwd=tmp_path, check=True)
    assert len(list(too_open(trace, tmp_path))) == n_found
