import io
import json
import pickle
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from pictures import TINY, paint

import fastmoco
from fastmoco import detectron, encoder, formats
from fastmoco.export import export
from fastmoco.pretrained import find
from fastmoco.weights import digest, read, save_encoder


def shaken(name, seed=0):
    """An encoder in which every weight matters; a new one's residual blocks begin at zero."""
    torch.manual_seed(seed)
    made = encoder.build(name).eval()
    for key, value in made.net.state_dict().items():
        if value.dim() == 1 and value.is_floating_point():
            value.copy_(torch.rand_like(value) + (0.0 if key.endswith("bias") else 0.5))
        elif key == "pos_embed":
            value.normal_()
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name in ("resnet18", "resnet18-small", "timm/test_resnet", "timm/test_vit"):
        save_encoder(folder / f"{name.replace('/', '-')}.safetensors", name, shaken(name), step=7, size=64)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole training, with what a later evaluation leaves."""
    images = paint(tmp_path_factory.mktemp("home") / "secret" / "flowers", 40, classes=2)
    options = {"epochs": 1, "batch": 8, "log_every": 1, "save_every": 5, "knn_every": 1, "workers": 0, "device": "cpu"}
    out = tmp_path_factory.mktemp("runs") / "done"
    path = fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(out), set=TINY, **options)
    known = {"digest": digest(find(str(path)).encoder.net), "data": str(images), "settings": "some"}
    record = {"evaluation": "linear", **known, "results": {"top1": 61.25, "note": "fine"}}
    other = {**record, "digest": "of another branch", "results": {"top1": 77.77}}
    compared = {**record, "evaluation": "gain", "results": {"random init/linear/1%": 88.88}}
    records = [record, other, compared, "strange", {"evaluation": "knn"}, {"results": [1]}]
    (path / "results.json").write_text(json.dumps(records))
    return path


def printed(capsys):
    """The lines to paste."""
    return capsys.readouterr().out.partition("\n\n")[2]


def pasted(capsys):
    """What they make when they are run."""
    scope = {}
    exec(printed(capsys), scope)
    return scope


def distance(net, other, size=64):
    """In the mode that each is in."""
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        return (net(x) - other(x)).abs().max().item()


@pytest.mark.parametrize("to", ["torchvision", "timm", "safetensors", "hub-folder"])
@pytest.mark.parametrize("name", ["resnet18", "resnet18-small", "timm-test_vit"])
def test_what_is_exported_is_the_encoder(tmp_path, capsys, monkeypatch, files, name, to):
    if (name, to) in (("resnet18-small", "timm"), ("timm-test_vit", "torchvision")):
        with pytest.raises(ValueError, match=f"--to {to}: .*; use --to"):
            export(str(files / f"{name}.safetensors"), to=to, out=str(tmp_path / "a"))
        assert not list(tmp_path.iterdir())
        return
    monkeypatch.chdir(tmp_path)
    path = export(str(files / f"{name}.safetensors"), to=to)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    theirs = pasted(capsys)["encoder"]
    timm = name.startswith("timm") or to == "timm" or (name, to) == ("resnet18", "hub-folder")
    assert type(theirs).__module__.partition(".")[0] == ("timm" if timm else "torchvision")
    ours = find(str(files / f"{name}.safetensors")).encoder
    assert distance(ours, theirs) <= 1e-6


def test_an_encoder_file_is_exported_exactly(tmp_path, files):
    path = export(
        str(files / "resnet18-small.safetensors"), to="safetensors", out=str(tmp_path / "new" / "a.safetensors")
    )
    stored, given = read(path), read(files / "resnet18-small.safetensors")
    assert (stored.name, stored.size) == (given.name, given.size)
    assert stored.tensors.keys() == given.tensors.keys()
    assert all(value.equal(given.tensors[key]) for key, value in stored.tensors.items())
    assert distance(fastmoco.load(path), fastmoco.load(files / "resnet18-small.safetensors")) == 0


def test_a_file_goes_into_a_folder_with_a_slash_and_a_hub_folder_is_that_folder(tmp_path, files):
    weights = str(files / "timm-test_resnet.safetensors")
    path = export(weights, to="timm", out=f"{tmp_path}/new/")
    assert path == tmp_path / "new" / "test_resnet.timm.safetensors"
    assert path.is_file()
    assert export(weights, to="hub-folder", out=f"{tmp_path}/hub/") == tmp_path / "hub"


def test_a_torchvision_file_holds_nothing_but_weights(tmp_path, files):
    path = export(str(files / "resnet18.safetensors"), to="torchvision", out=str(tmp_path / "a.pth"))
    assert torch.load(path, weights_only=True).keys() == encoder.build("resnet18").net.state_dict().keys()


@pytest.mark.parametrize("name", ["resnet18", "timm-test_vit"])
def test_onnx_makes_the_same_embeddings_of_any_number_of_images(tmp_path, capfd, monkeypatch, files, name):
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    path = export(str(files / f"{name}.safetensors"), to="onnx", size=64)
    told = capfd.readouterr()
    assert told.err == ""
    assert len(told.out.splitlines()) == 9  # and nothing of the exporter's
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    session = onnxruntime.InferenceSession(path)
    ours = find(str(files / f"{name}.safetensors")).encoder
    for count in (1, 2, 5):
        x = torch.randn(count, 3, 64, 64)
        (theirs,) = session.run(["embeddings"], {"images": x.numpy()})
        with torch.no_grad():
            assert np.abs(ours(x).numpy() - theirs).max() <= 1e-4
    scope = {}
    exec(told.out.partition("\n\n")[2], scope)
    assert scope["embeddings"].shape == (1, ours.width)


def test_without_onnx_one_line_says_how_to_get_it(tmp_path, monkeypatch, files):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"--to onnx needs onnxruntime: pip install 'fast-moco\[export\]'"):
        export(str(files / "resnet18.safetensors"), to="onnx", out=str(tmp_path / "a.onnx"))


def r50_keys():
    """The keys of detectron2's ResNet-50, from its structure alone."""
    convolutions = ["stem.conv1"]
    for stage, blocks in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        for block in range(blocks):
            layers = ["conv1", "conv2", "conv3", *(["shortcut"] if block == 0 else [])]
            convolutions += [f"res{stage}.{block}.{layer}" for layer in layers]
    norms = ("weight", "bias", "running_mean", "running_var")
    return {f"{each}.weight" for each in convolutions} | {f"{each}.norm.{n}" for each in convolutions for n in norms}


def test_a_detectron2_file_has_exactly_the_keys_of_an_r50(tmp_path, capsys):
    made = shaken("resnet50")
    save_encoder(tmp_path / "a.safetensors", "resnet50", made, step=7, size=64)
    path = export(str(tmp_path / "a.safetensors"), to="detectron2", out=str(tmp_path / "a.pkl"))
    content = pickle.loads(path.read_bytes())  # as detectron2 does
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True
    assert len(r50_keys()) == 265
    assert content["model"].keys() == r50_keys()
    assert all(type(array) is np.ndarray and array.dtype == np.float32 for array in content["model"].values())
    own = made.net.state_dict()
    for theirs, ours in {
        "stem.conv1.norm.running_var": "bn1.running_var",
        "res2.0.shortcut.weight": "layer1.0.downsample.0.weight",
        "res3.0.shortcut.norm.bias": "layer2.0.downsample.1.bias",
        "res4.5.conv3.norm.weight": "layer3.5.bn3.weight",
        "res5.2.conv2.weight": "layer4.2.conv2.weight",
    }.items():
        assert np.array_equal(content["model"][theirs], own[ours].numpy())
    assert b"numpy._core" not in path.read_bytes()[:4000]  # numpy 1 has no such module
    settings = yaml.safe_load(printed(capsys))
    assert settings == {
        "MODEL": {
            "WEIGHTS": str(path),
            "PIXEL_MEAN": [123.675, 116.28, 103.53],
            "PIXEL_STD": [58.395, 57.12, 57.375],
            "RESNETS": {"DEPTH": 50, "STRIDE_IN_1X1": False},
        },
        "INPUT": {"FORMAT": "RGB"},
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("resnet34", {"DEPTH": 34, "STRIDE_IN_1X1": False, "RES2_OUT_CHANNELS": 64}),
        ("wide_resnet101_2", {"DEPTH": 101, "STRIDE_IN_1X1": False, "WIDTH_PER_GROUP": 128}),
    ],
)
def test_detectron2_is_told_the_form_of_the_resnet(tmp_path, name, wanted):
    assert yaml.safe_load(detectron.settings(tmp_path, name))["MODEL"]["RESNETS"] == wanted


@pytest.mark.parametrize("name", ["resnet18-small", "timm-test_resnet"])
def test_detectron2_is_not_given_what_it_cannot_make(tmp_path, files, name):
    with pytest.raises(ValueError, match=r"--to detectron2: it does not make .*, only torchvision's ResNets"):
        export(str(files / f"{name}.safetensors"), to="detectron2", out=str(tmp_path / "a.pkl"))


def test_nothing_but_arrays_is_read_from_a_pickle(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": {"a": io.StringIO}}))
    with pytest.raises(ValueError, match=r"holds more than numbers, and was not run: _?io.StringIO"):
        detectron.load(tmp_path / "a.pkl", [])


def test_a_run_is_exported_beside_itself_with_what_it_knows(run, capsys, monkeypatch):
    path = export(str(run), to="hub-folder")
    assert path == run / "export" / "test_resnet-hub"
    assert {entry.name for entry in path.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    assert distance(pasted(capsys)["encoder"], fastmoco.load(run), 16) == 0
    card = (path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm\n")
    version = re.escape(f"fastmoco {fastmoco.__version__}, torch {torch.__version__}, python ")
    for words in (
        "- recipe: pocket/shapes, changed\n",
        r"- data: flowers \(40 images\)\n",
        "- epochs: 1\n",
        "- batch: 8\n",
        "- seed: 0\n",
        f"- versions: {version}",
        r"```python\nRecipe\(",
        r"\| val/knn_top1 \| step 5 of the training \| [\d.]+ \|",
        r"\| val/linear_top1 \| step 5 of the training \| [\d.]+ \|",
        r"\| top1 \| flowers, some \| 61.25 \|",
    ):
        assert re.search(words, card), words
    assert "secret" not in card
    assert not re.search("77.77|88.88", card)  # of other weights
    assert str(run) not in card
    assert distance(fastmoco.load(path), fastmoco.load(run), 16) == 0  # it is taken back
    # The lines of the card are run where the folder lies.
    monkeypatch.chdir(path.parent)
    scope = {}
    exec(re.search(r"```python\n(import.*?)```", card, re.DOTALL)[1], scope)
    assert distance(scope["encoder"], fastmoco.load(run), 16) == 0


def test_both_branches_of_a_run_are_exported(run):
    online, target = (export(str(run), to="timm", branch=branch) for branch in ("online", "target"))
    assert (online.name, target.name) == ("test_resnet.timm.safetensors", "test_resnet-target.timm.safetensors")
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["learner"]
    assert read(target).tensors["conv1.0.weight"].equal(state["momentum.encoder.net.conv1.0.weight"])
    assert not read(target).tensors["conv1.0.weight"].equal(read(online).tensors["conv1.0.weight"])


def test_a_card_tells_a_training_that_is_not_done_and_a_momentum_copy(run, tmp_path):
    path = shutil.copytree(run, tmp_path / "half", ignore=shutil.ignore_patterns("export"))
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:2]))
    (path / "run.json").write_text("[")
    card = (export(str(path), to="hub-folder", branch="target") / "README.md").read_text()
    assert "# timm/test_resnet, momentum copy\n" in card
    assert "- epochs: 0.4 of 1\n" in card
    assert "## Results" not in card  # all that was measured is of the online branch
    assert not {"- seed", "- data", "- versions", "- recipe"} & {line.partition(":")[0] for line in card.splitlines()}


def test_a_card_of_a_checkpoint_of_the_way_tells_nothing_that_came_later(run, tmp_path):
    path = shutil.copytree(run, tmp_path / "on", ignore=shutil.ignore_patterns("export"))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "epoch": 2.0}\n{"step": 10, "val/knn_top1": 99.99}\n')
    recipe = (path / "recipe.py").read_text()
    (path / "recipe.py").write_text(recipe.replace("epochs=1", "epochs=2"))
    out = export(str(path / "checkpoints" / "last.pt"), to="hub-folder", out=str(tmp_path / "hub"))
    card = (out / "README.md").read_text()
    assert "- epochs: 1 of 2\n" in card
    assert "99.99" not in card
    assert "| val/knn_top1 | step 5 of the training |" in card


def test_a_card_without_a_run_says_what_is_known(tmp_path, files):
    path = export(str(files / "resnet18-small.safetensors"), to="hub-folder", out=str(tmp_path / "hub"))
    assert {entry.name for entry in path.iterdir()} == {"model.safetensors", "README.md"}
    card = (path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n")
    assert "usually of 64 px" in card
    assert "## Training" not in card
    assert "## Results" not in card
    assert str(tmp_path) not in card


def test_what_exists_is_kept(tmp_path, files):
    weights, out = str(files / "timm-test_resnet.safetensors"), tmp_path / "hub"
    export(weights, to="hub-folder", out=str(out))
    (out / "README.md").write_text("mine")
    for to in ("hub-folder", "timm"):
        with pytest.raises(ValueError, match="hub exists and is kept; add --overwrite, or give another --out"):
            export(weights, to=to, out=str(out))
    assert (out / "README.md").read_text() == "mine"
    export(weights, to="hub-folder", out=str(out), overwrite=True)
    assert (out / "README.md").read_text() != "mine"
    (out / "photo.png").write_text("mine")
    with pytest.raises(ValueError, match=r"holds 'photo.png', so it is no export; give another --out"):
        export(weights, to="hub-folder", out=str(out), overwrite=True)
    assert (out / "photo.png").read_text() == "mine"
    export(weights, to="timm", out=str(tmp_path / "a"))
    for to, place, kind in (("hub-folder", "a", "file"), ("timm", "hub", "folder")):
        with pytest.raises(ValueError, match=f"{place} is a {kind}; give another --out"):
            export(weights, to=to, out=str(tmp_path / place), overwrite=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"hub", "a"}


def load_other(path, found):
    return shaken(found.name, seed=1)


def load_nothing(path, found):
    raise RuntimeError("Missing key(s)\nin state_dict")


@pytest.mark.parametrize(
    ("load_back", "words"),
    [
        (load_other, r"--to timm: a.safetensors was removed, as its embeddings differ by"),
        (
            load_nothing,
            r"--to timm: timm/test_resnet cannot be loaded back: Missing key\(s\) in state_dict; "
            r"use --to safetensors, and tell us$",
        ),
    ],
)
def test_what_is_not_the_same_when_it_is_loaded_back_is_removed(tmp_path, monkeypatch, files, load_back, words):
    out = tmp_path / "a.safetensors"
    out.write_text("the one before")
    monkeypatch.setitem(formats.FORMATS, "timm", replace(formats.FORMATS["timm"], load=load_back))
    with pytest.raises(ValueError, match=words) as refused:
        export(str(files / "timm-test_resnet.safetensors"), to="timm", out=str(out), overwrite=True)
    assert "\n" not in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]
    assert out.read_text() == "the one before"


@pytest.mark.parametrize("to", ["timm", "safetensors", "hub-folder"])
def test_lines_to_paste_are_python_whatever_a_folder_is_called(tmp_path, capsys, files, to):
    weights = str(files / "timm-test_resnet.safetensors")
    folder = tmp_path / "my \"best\" \\ one, für 'them'"
    folder.mkdir()
    export(weights, to=to, out=str(folder / "a"))
    assert distance(pasted(capsys)["encoder"], fastmoco.load(weights)) <= 1e-6


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"write": load_nothing}, r"cannot be written: .*; tell us$"),
        ({"load": load_nothing}, r"cannot be loaded back: .*; tell us$"),
        ({"load": load_other}, r"embeddings differ by .* when it is loaded back; tell us$"),
    ],
)
def test_a_format_that_fails_is_not_the_one_to_use_instead(tmp_path, monkeypatch, files, fault, words):
    monkeypatch.setitem(formats.FORMATS, "safetensors", replace(formats.FORMATS["safetensors"], **fault))
    with pytest.raises(ValueError, match=words):
        export(str(files / "timm-test_resnet.safetensors"), to="safetensors", out=str(tmp_path / "a"))


@pytest.mark.parametrize("name", ["timm/swin_tiny_patch4_window7_224", "timm/davit_tiny"])
def test_what_timm_renames_in_a_hub_folder_goes_to_timm_as_a_file_with_its_lines(tmp_path, capsys, name):
    save_encoder(tmp_path / "own.safetensors", name, shaken(name), step=7, size=224)
    words = rf"--to hub-folder: {name} cannot be loaded back: .*; use --to timm and the lines that it prints, "
    with pytest.raises(ValueError, match=words):
        export(str(tmp_path / "own.safetensors"), to="hub-folder", out=str(tmp_path / "hub"))
    export(str(tmp_path / "own.safetensors"), to="timm", out=str(tmp_path / "a.safetensors"))
    assert distance(pasted(capsys)["encoder"], fastmoco.load(tmp_path / "own.safetensors"), 224) == 0


def test_an_encoder_that_uses_weights_in_several_places_is_exported(tmp_path, capsys):
    name = "timm/coat_lite_tiny"
    save_encoder(tmp_path / "own.safetensors", name, shaken(name), step=7, size=224)
    own = fastmoco.load(tmp_path / "own.safetensors")
    for to in ("timm", "safetensors", "hub-folder"):
        export(str(tmp_path / "own.safetensors"), to=to, out=str(tmp_path / to))
        assert distance(pasted(capsys)["encoder"], own, 224) == 0, to


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "onnx", "size": 0}, "--size 0: use the pixels"),
        ({"to": "timm", "branch": "target"}, "--branch target: .* has one branch only"),
        ({"to": "timm", "encoder": "resnet50"}, "--encoder resnet50: .* holds a timm/test_resnet"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, files, options, words):
    with pytest.raises(ValueError, match=words) as refused:
        export(str(files / "timm-test_resnet.safetensors"), out=str(tmp_path / "a"), **options)
    assert "\n" not in str(refused.value)
