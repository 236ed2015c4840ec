"""Files that several processes are about at once."""

from pathlib import Path

from eval.files import remove_empty


def test_a_folder_that_another_process_removed_or_writes_to_is_left_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    remove_empty(folder)  # the other was first
    folder.mkdir()
    (folder / "1.npz").write_bytes(b"")
    remove_empty(folder)
    assert folder.is_dir()
    (folder / "1.npz").unlink()
    remove_empty(folder)
    assert not folder.exists()
