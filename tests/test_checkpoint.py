import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastmoco import checkpoint


def state(step):
    return {"step": step, "learner": {"weight": torch.full((1000,), float(step))}}


def newest(folder):
    notes = []
    found = checkpoint.newest(folder, notes.append)
    return found and found["step"], notes


def test_the_last_and_the_one_before_are_kept(tmp_path):
    assert newest(tmp_path) == (None, [])
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, state(step))
    assert newest(tmp_path) == (3, [])
    assert checkpoint.load(tmp_path / "previous.pt")["step"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]


def test_those_to_keep_are_kept_under_their_step(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, state(step), keep=step != 2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001.pt", "step-00000003.pt"]
    assert checkpoint.load(tmp_path / "step-00000001.pt")["step"] == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path, damage):
    for step in (1, 2):
        checkpoint.save(tmp_path, state(step))
    last = tmp_path / "last.pt"
    content = bytearray(last.read_bytes())
    if damage == "flip":  # one bit in the middle of the weights, which torch alone would not notice
        content[len(content) // 2] ^= 1
    last.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "flip": content, "text": b"hello"}[damage])
    with pytest.raises(ValueError, match=r"last.pt is damaged: .*; give .*/previous.pt, the one before$"):
        checkpoint.load(last)
    step, notes = newest(tmp_path)
    assert step == 1
    assert "last.pt is damaged" in notes[0]
    assert "give" not in notes[0]
    assert notes[1] == "going on from previous.pt, step 1"


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, state(step))
    (tmp_path / "last.pt").replace(tmp_path / "previous.pt")
    assert newest(tmp_path) == (2, ["going on from previous.pt, step 2"])


def test_where_no_checkpoint_is_whole_nothing_is_begun_anew(tmp_path):
    checkpoint.save(tmp_path, state(1))
    (tmp_path / "last.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read; give another --out, or --fresh"):
        newest(tmp_path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_checkpoint_that_pickles_a_callable_is_refused_in_one_line_and_not_run(tmp_path, kind):
    content = {"format": checkpoint.FORMAT, "step": 1, "learner": Evil(tmp_path / "run")}
    if kind == "torch":
        torch.save(content, tmp_path / "last.pt")
    else:
        (tmp_path / "last.pt").write_bytes(pickle.dumps(content))
    with pytest.raises((ValueError, PermissionError)) as refused:
        newest(tmp_path)
    assert "\n" not in str(refused.value)
    assert kind == "pickle" or "holds more than numbers, and was not run: posix.system" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    torch.save({"model": 1}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"is not a checkpoint of this version of fastmoco; give another$"):
        checkpoint.load(tmp_path / "last.pt")


def test_a_file_that_is_written_anew_keeps_its_mode_and_one_that_is_new_has_the_usual(tmp_path):
    (tmp_path / "usual").touch()
    (tmp_path / "private").touch(0o600)
    for name in ("new", "private"):
        checkpoint.write(tmp_path / name, lambda file: file.write(b"text"))
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["private"] & 0o777 == 0o600
    assert modes["new"] == modes["usual"]


def test_a_full_disk_is_one_line_and_the_checkpoint_before_is_intact(tmp_path):
    # A limit on the size of files fails as a full disk does: in the middle of a write.
    code = f"""
import resource, torch
from pathlib import Path
from fastmoco import checkpoint
folder = Path({str(tmp_path)!r})
checkpoint.save(folder, {{"step": 1, "weights": torch.zeros(10)}})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(folder, {{"step": 2, "weights": torch.zeros(1_000_000)}})
except OSError as error:
    print(error)
"""
    source = Path(checkpoint.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}
    )
    assert result.stdout.startswith(f"cannot write {tmp_path}/last.pt: ")
    assert "what was there before is intact" in result.stdout
    assert len(result.stdout.splitlines()) == 1, result.stderr
    assert newest(tmp_path) == (1, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt"]
