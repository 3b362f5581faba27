"""A report is written completely or not at all, also where the writer is interrupted."""

from pathlib import Path
from typing import Any

import pytest

from clearhead.audit.record import AuditRecord
from clearhead.report import folder as folder_module
from clearhead.report.folder import report_folder, write_report


@pytest.mark.parametrize("move", [0, 1])
def test_an_interrupt_between_two_files_leaves_the_whole_report(
    record: AuditRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: int
) -> None:
    for name in ("findings.json", "index.html"):
        (tmp_path / name).write_text("of another audit")
    replace, moves = Path.replace, []

    def interrupted(self: Path, target: Path) -> Any:
        if target.parent == tmp_path:
            moves.append(target)
            if len(moves) == move + 1:
                raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), report_folder(tmp_path) as folder:
        folder.write(record)
    assert folder.complete
    assert {path.name: path.read_text()[:2] for path in tmp_path.iterdir()} == {
        "findings.json": "{\n", "index.html": "<!",
    }  # fmt: skip


def test_an_interrupt_before_the_report_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), report_folder(tmp_path / "new" / "report") as folder:
        raise KeyboardInterrupt
    assert not folder.complete
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_writer_left_is_removed_and_the_rest_of_the_folder_stays(
    record: AuditRecord, tmp_path: Path
) -> None:
    abandoned = tmp_path / ".clearhead-abcd1234"
    abandoned.mkdir()
    (abandoned / "clearhead-writer.lock").touch()
    (tmp_path / "notes.txt").touch()
    written = write_report(record, tmp_path)
    assert {*tmp_path.iterdir()} == {written.page, written.findings, tmp_path / "notes.txt"}


def test_a_folder_that_another_shard_removes_while_it_is_empty_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, original, removed = tmp_path / "report", folder_module.temporary_folder, []

    def temporary_folder(folder: Path) -> Any:
        if len(removed) < 3:
            folder.rmdir()
            removed.append(folder)
        return original(folder)

    monkeypatch.setattr(folder_module, "temporary_folder", temporary_folder)
    with report_folder(target):
        assert target.is_dir()
    assert len(removed) == 3
