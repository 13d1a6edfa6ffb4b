import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fastmoco
from fastmoco import command, shapes
from fastmoco.cli import VERBS, main
from fastmoco.flags import place
from fastmoco.launch import check
from fastmoco.recipes import rows

drawn = cache(shapes.draw)  # it takes seconds, and every mistake would wait for it
OWN = """
from dataclasses import replace
from fastmoco.methods import fast_moco, both
from fastmoco.steps import Combine, Divide, Encode, Predict, Project

mine = replace(fast_moco, batch=64, encoder="resnet18")
_hidden = mine
"""


def run(*arguments):
    """The command in a process of its own; the last line tells which heavy modules it imported."""
    code = f"""
import sys
from fastmoco.cli import main
sys.argv = ["fastmoco", *{list(arguments)!r}]
try:
    main()
    code = 0
except SystemExit as stop:
    code = stop.code or 0
sys.stdout.flush()
print(" ".join(name for name in ("torch", "torchvision", "timm", "rich") if name in sys.modules))
sys.exit(code)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.fixture
def here(monkeypatch, capsys):
    """The command in this process, for what does not depend on what was imported; a process takes seconds to start."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fastmoco", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


def loaded(done):
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [("--help",), *((*verb.split(), "--help") for verb in VERBS)])
def test_help_needs_no_torch(arguments):
    done = run(*arguments)
    assert done.returncode == 0
    assert "usage: fastmoco" in done.stdout
    assert not {"torch", "torchvision", "timm"} & loaded(done)


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version_is_one_line_and_needs_no_torch(word):
    done = run(word)
    assert done.returncode == 0
    told, imported = done.stdout.splitlines()
    assert told.startswith(f"fastmoco {fastmoco.__version__}, torch ")
    assert "torch" not in imported.split()


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_flag_does_not_begin_with_its_name(verb):
    told = inspect.getdoc(VERBS[verb]).partition("Args:")[2]
    assert not re.findall(r"^    \w+: (?:of|that|by|as|instead) .*", told, re.MULTILINE)


def test_recipes_lists_every_row_without_building_an_encoder():
    done = run("recipes")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()[1:-1] if line.strip()]
    assert names == list(rows())
    assert not {"torchvision", "timm"} & loaded(done)
    assert "73.5" in next(line for line in done.stdout.splitlines() if line.startswith("table4a/fast_moco"))


def test_show_imports_only_what_the_encoder_needs():
    done = run("show", "table4a/fast_moco")
    assert done.returncode == 0
    assert loaded(done) == {"torch", "torchvision", "rich"}
    for fact in (
        "23,508,032",
        "12,601,344",
        "2,100,736",
        "4.303 G",
        "4.087 G",
        "12 per image",
        "6.238",
        "linear/top1 73.5",
    ):
        assert fact in done.stdout
    assert "Divide(2) Encode Combine(2) Project Predict" in done.stdout


def test_show_changes_a_row_and_says_so(here):
    done = here("show", "table4a/fast_moco", "--set", "encoder=resnet18", "epochs=5", "--set", "batch=256")
    assert done.returncode == 0
    assert "not the paper's row" in done.stdout
    assert "73.5" not in done.stdout
    assert "5.545" in done.stdout
    assert "5 epochs at batch 256" in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_show_carries_a_row_to_a_base(here):
    done = here("show", "table4a/encode_only", "--recipe-base", "pocket/imagenette", "--set", "batch=128")
    assert done.returncode == 0
    assert done.stdout.startswith("table4a/encode_only in pocket/imagenette --set batch=128\n")
    assert "68.9" not in done.stdout  # the paper's number is of another setting
    views = [line.split()[:3] for line in done.stdout.splitlines()[3:6]]
    assert views == [["0", "128", "1"], ["1", "128", "1"], ["2", "90", "4"]]
    assert "100 epochs at batch 128" in done.stdout


@pytest.fixture
def own(tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    return tmp_path


def test_a_users_own_file_is_listed_and_shown(own, here):
    listed = here("recipes", f"{own}/my.py")
    assert f"{own}/my.py:mine" in listed.stdout
    assert "_hidden" not in listed.stdout
    assert f"{own}/my.py:mine" in here("recipes", f"{own}/my.py:mine").stdout
    assert "table4a/fast_moco" in here("recipes", "table4a/fast_moco").stdout
    shown = here("show", f"{own}/my.py:mine")
    assert shown.returncode == 0
    assert "100 epochs at batch 64" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("show", "table4a/fast_mocco"), "unknown row 'table4a/fast_mocco'; the nearest known: table4a/fast_moco"),
        (("show", "fast_moco"), "unknown row 'fast_moco'; the nearest known:"),
        (("show", ""), "unknown row ''"),
        (("show", "TABLE4A/FAST_MOCO"), "the nearest known: table4a/fast_moco"),
        (("show", "table1/fast_moco_100", "--set", "encoder=vgg11"), "or any timm model as timm/NAME"),
        (("show", "table7/simsiam", "--set", "target.alpha=1"), "unknown StopGradient field 'alpha'; known: none"),
        (("show", "table7/nnclr", "--set", "support=99999999999999999"), "support=99999999999999999"),
        (
            ("show", "text/adamw", "--recipe-base", "pocket/cifar10"),
            "text/adamw in pocket/cifar10: AdamW is part of this row, and the base has SGD; take another base",
        ),
        (
            ("show", "text/max", "--recipe-base", "pocket/cifar"),
            "fastmoco: --recipe-base: unknown row 'pocket/cifar'; the nearest known: pocket/cifar10, ",
        ),
        (
            ("show", "text/max", "--recipe-base", "nope"),
            "fastmoco: --recipe-base: unknown row 'nope'; known: pocket/shapes, ",
        ),
        (("show", "text/max", "--recipe-base", "shapes"), "; `fastmoco recipes pocket` lists the usual ones"),
        (("show", "text/max", "--recipe-base", "absent.py:mine"), "fastmoco: --recipe-base: no file 'absent.py'"),
        (
            ("pretrain", "shapes", "--recipe", "text/max", "--recipe-base", "text/maxx"),
            "fastmoco: --recipe-base: unknown row 'text/maxx'; the nearest known: text/max, ",
        ),
        (("sweep", "table4a", "--set"), "fastmoco: --set: give NAME=VALUE after it"),
        (("bench", "step", "--device", "cpu", "--set"), "fastmoco: --set: give NAME=VALUE after it"),
        (("recipes", "tabel4a"), "unknown table 'tabel4a'; the nearest known: table4a"),
        (
            ("report", "a", "--batch", "32", "b"),
            "'b' belongs to no flag; put it before the first flag, or leave it out",
        ),
        (("report", "a", "--batch", "32", "b", "c"), "'b' belongs to no flag; put it before the first flag"),
        (("report", "a", "--batch", "32", "my b"), "Unrecognized options: my b; see fastmoco report --help"),
        (("show", "text/max", "b"), "fastmoco: Unrecognized options: b; see fastmoco show --help"),
        (("report", "--bathc", "3"), "fastmoco: Unrecognized options: --bathc, 3; perhaps --batch; see"),
        (("report", "--epochs", "x"), "fastmoco: Error parsing --epochs: use INT, not 'x'; see fastmoco report --help"),
        (("sweep", "a", "--seeds", "1,2"), "fastmoco: Error parsing --seeds: use INT, not '1,2'; see fastmoco sweep"),
        (("show", "absent.py:mine"), "no file 'absent.py'"),
        (
            ("show", "table1/fast_moco_100", "--set", "optm.lr=1"),
            "table1/fast_moco_100: --set optm.lr=1: unknown Recipe field",
        ),
        (("show", "table1/fast_moco_100", "--set", "encoder=resnt50"), "unknown encoder 'resnt50'"),
        (("show", "table1/fast_moco_100", "--set", "encoder=timm/vit_tny"), "unknown encoder 'timm/vit_tny'"),
        (("show", "figure3b/m3_n2", "--set", "encoder=timm/vit_tiny_patch16_224"), "cannot take 75x75 images"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, reason, here):
    done = here(*arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.startswith("fastmoco: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mine = (", "line 1: SyntaxError"),
        ("\nimport absent_module", "line 2: ModuleNotFoundError: No module named 'absent_module'"),
        ("x = 1", "holds no recipe"),
        (
            OWN + "\nbad = replace(mine, views=both((Divide(3), Encode(), Project(), Predict())))",
            "line 9: view 0, online path",
        ),
        (OWN.replace("mine", "other"), "unknown row"),
        ("raise KeyError", "line 1: KeyError"),
        ("x = 1\0", "line 1: SyntaxError"),
        ("import sys; sys.exit()", "line 1: SystemExit"),
    ],
)
def test_a_mistake_in_a_users_own_file_names_its_line(tmp_path, text, reason, here):
    (tmp_path / "my.py").write_text(text)
    done = here("show", f"{tmp_path}/my.py:mine")
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_without_a_name_lists_its_recipes(own, here):
    done = here("show", f"{own}/my.py")
    assert done.returncode == 2
    assert f"{own}/my.py:mine" in done.stderr


def test_a_users_file_finds_its_neighbours(own):
    (own / "other.py").write_text("from my import mine\nlong = mine\n")
    assert run("recipes", f"{own}/other.py:long").returncode == 0


def test_the_help_of_pretrain_fits_two_screens_and_says_what_every_flag_does():
    text = run("pretrain", "--help").stdout
    assert len(text.splitlines()) < 60
    for name in ("recipe", "epochs", "size", "log-every", "download", "fresh"):
        line = text.partition(f"--{name}")[2]
        assert len(line.partition("--")[0].replace("│", " ").split()) > 4, name
    assert "None" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing",), "no such folder, list or set 'missing'"),
        (("empty",), "no images in 'empty'"),
        (("notes.txt",), "none of the first 1 files named in 'notes.txt' exists"),
        (("shapes", "--batch", "6000"), "batch 6000 is larger than the 5000 images; use --batch 4096"),
        (("shapes", "--set", "optim.rl=1"), "unknown SGD field 'rl'; the nearest known: lr"),
        (("shapes", "--set", "optim.lr"), "not NAME=VALUE"),
        (("shapes", "--set"), "fastmoco: --set: give NAME=VALUE after it, such as optim.lr=0.15"),
        (("shapes", "--set", "optim.lr=1", "--set", "--epochs", "1"), "fastmoco: --set: give NAME=VALUE after it"),
        (("shapes", "--recipe", "pocket/shape"), "unknown row 'pocket/shape'; the nearest known: pocket/shapes"),
        (("shapes", "--size", "33"), "33x33 pixels do not divide by 2; use a view of 34"),
        (("cifar10",), "cifar10 is not in"),
        (("shapes", "--out", "notes.txt"), "notes.txt is a file; give a folder for --out"),
        (("shapes", "--device", "tpu"), "--device tpu"),
        (("shapes", "--epochs", "-1"), "fastmoco: --epochs -1: use 1 to 1,000,000"),
        (("shapes", "--epochs", "9" * 20), f"fastmoco: --epochs {'9' * 20}: use 1 to 1,000,000"),
        (("shapes", "--out", "notes.txt/a"), "notes.txt/a cannot be written to: Not a directory; give another --out"),
        (
            ("shapes", "--device", "cpu", "--graph", "on"),
            "--graph on: it needs a GPU, and this is cpu; use --graph off",
        ),
        (("shapes", "--decode", "x"), "--decode"),
        (("shapes", "--decode", "gpu", "--device", "cpu"), "--decode gpu needs a GPU"),
        (("shapes", "--micro", "8"), "--micro 8: timm/test_resnet has batch norm"),
    ],
)
def test_a_mistake_in_pretrain_is_one_line_with_exit_2_and_nothing_is_written(
    arguments, words, tmp_path, monkeypatch, here
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(shapes, "draw", drawn)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("some text")
    done = here("pretrain", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("fastmoco: ")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "notes.txt"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_complaint_about_flags_is_one_line_whatever_a_terminal_can_show(encoding, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = run("report", "--bathc", "3")
    assert done.stderr == ("fastmoco: Unrecognized options: --bathc, 3; perhaps --batch; see fastmoco report --help\n")


@pytest.mark.parametrize(
    ("given", "wrong"), [(("--epochs", "2", "table4b"), "table4b"), (("table4b", "--epochs", "2", "2.5"), "2.5")]
)
def test_several_numbers_that_are_none_are_named(given, wrong, here):
    done = here("sweep", *given, "--dry-run")
    told = f"fastmoco: --epochs: use whole numbers, not '{wrong}'; names go before the first flag; "
    assert done.stderr == f"{told}see fastmoco sweep --help\n"
    assert done.returncode == 2


def test_devices_are_gpus_unless_a_cpu_is_asked_for(monkeypatch, here):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    done = here("pretrain", "shapes", "--devices", "2")
    assert done.stderr == "fastmoco: --devices 2: this machine has no GPU; leave it out, or add --device cpu\n"
    assert check(2, "cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert check(2, "auto")


def test_a_home_is_found_where_no_shell_has_seen_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place("~/runs/a") == tmp_path / "runs" / "a"
    assert place("runs/~a") == Path("runs/~a")
    assert place("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert command._place("photos", "pocket/photos", "", "~/runs/a", fresh=False) == tmp_path / "runs" / "a"
