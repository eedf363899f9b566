from __future__ import annotations

from pathlib import Path

from tasks.registered import checksum


def test_what_python_leaves_by_loading_a_version_does_not_change_its_checksum(tmp_path: Path) -> None:
    """A version is loaded by a gate before its checksum is noted, and not before a rollback or a server compares it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "release.py").write_text("1")
    before = checksum(tmp_path)
    (tmp_path / "code" / "__pycache__").mkdir()
    (tmp_path / "code" / "__pycache__" / "release.pyc").write_bytes(b"2")
    (tmp_path / "registered_model_meta").write_text("3")
    assert checksum(tmp_path) == before
    (tmp_path / "code" / "more.py").write_text("4")
    assert checksum(tmp_path) != before
