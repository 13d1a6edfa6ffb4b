import argparse
import pickle
import zipfile
from functools import partial

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file

from fastmoco import encoder
from fastmoco.foreign import FORMS, LAYOUTS, import_, infer
from fastmoco.pretrained import find
from fastmoco.weights import read


def shaken(net, seed=0):
    """With weights that all differ, so that none can be mistaken for another."""
    generator = torch.Generator().manual_seed(seed)
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
        else:
            value.fill_(seed + 7)
    return net


@pytest.fixture(scope="module")
def online():
    return shaken(torchvision.models.resnet18(), 1).state_dict()


@pytest.fixture(scope="module")
def target():
    return shaken(torchvision.models.resnet18(), 2).state_dict()


@pytest.fixture(scope="module")
def slim(online):
    """The same keys with few numbers, for files that are refused before all of them matter."""
    return {key: value.flatten()[:64].clone() for key, value in online.items()}


def body(state):
    return {key: value for key, value in state.items() if not key.startswith("fc.")}


def put(prefix, state):
    return {f"{prefix}{key}": value for key, value in state.items()}


def numbered(state):
    """The keys of nn.Sequential(*children), as the authors of Fast-MoCo have them."""
    children = {"conv1": 0, "bn1": 1, "relu": 2, "maxpool": 3, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    return {f"{children[key.split('.')[0]]}.{key.split('.', 1)[1]}": value for key, value in body(state).items()}


HEAD = {"0.weight": torch.ones(4, 4), "1.running_mean": torch.ones(4), "3.bias": torch.ones(4)}


def write_fast_moco(online, target, path):
    keys = {
        **put("module.backbone.", numbered(online)),
        **put("module.encoder.0.", numbered(online)),
        **put("module.bbone_ema.", numbered(target)),
        **put("module.encoder_ema.0.", numbered(target)),
        **put("module.encoder.1.", HEAD),
        **put("module.projector.", HEAD),
        **put("module.projector_ema.", HEAD),
        **put("module.predictor.", HEAD),
    }
    torch.save({"model": keys, "optimizer": {"state": {}}, "last_iter": 7}, path)


def write_moco_v3(online, target, path, before="module."):
    keys = {
        **put(f"{before}base_encoder.", {**body(online), **put("fc.", HEAD)}),
        **put(f"{before}momentum_encoder.", {**body(target), **put("fc.", HEAD)}),
        **put(f"{before}predictor.", HEAD),
    }
    flags = argparse.Namespace(lr=0.1)  # as many trainings keep them
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": keys, "args": flags}, path)


def write_moco(online, target, path):
    keys = {
        **put("module.encoder_q.", {**body(online), **put("fc.", HEAD)}),
        **put("module.encoder_k.", {**body(target), **put("fc.", HEAD)}),
        "module.queue": torch.ones(4, 8),
        "module.queue_ptr": torch.zeros(1, dtype=torch.long),
    }
    # As torch wrote before version 1.6, when these files were made.
    torch.save({"epoch": 3, "state_dict": keys}, path, _use_new_zipfile_serialization=False)


def write_simsiam(online, target, path):
    keys = {**put("module.encoder.", {**body(online), **put("fc.", HEAD)}), **put("module.predictor.", HEAD)}
    torch.save({"epoch": 3, "state_dict": keys}, path)


def write_barlow(online, target, path):
    keys = {**put("module.backbone.", body(online)), **put("module.projector.", HEAD), **put("module.bn.", HEAD)}
    torch.save({"epoch": 3, "model": keys}, path)


def write_barlow_plain(online, target, path):
    torch.save(body(online), path)


def write_torchvision(online, target, path):
    torch.save(online, path)


def write_old(online, target, path):
    """Before torch counted batches."""
    torch.save({key: value for key, value in online.items() if "num_batches" not in key}, path)


WRITERS = {
    "Fast-MoCo": write_fast_moco,
    "moco-v3": write_moco_v3,
    "moco-v3, one process": partial(write_moco_v3, before=""),
    "MoCo v1 or v2": write_moco,
    "SimSiam": write_simsiam,
    "Barlow Twins": write_barlow,
    "torchvision or timm": write_torchvision,
    "torchvision or timm, plain": write_barlow_plain,
    "torchvision or timm, old": write_old,
}


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_is_imported_exactly(tmp_path, monkeypatch, capsys, online, target, layout):
    monkeypatch.chdir(tmp_path)
    WRITERS[layout](online, target, tmp_path / "weights.pth.tar")
    path = import_("weights.pth.tar", size=96)
    assert path.name == "weights.encoder.safetensors"
    stored = read(path)
    assert (stored.name, stored.step, stored.size) == ("resnet18", -1, 96)
    assert stored.tensors.keys() == body(online).keys()
    counted = layout != "torchvision or timm, old"
    wanted = {key: value for key, value in body(online).items() if counted or "num_batches" not in key}
    assert all(stored.tensors[key].equal(value) for key, value in wanted.items())
    told = capsys.readouterr().out
    assert told.startswith(f"weights.pth.tar: {layout.partition(',')[0]}, online branch, resnet18\n")
    assert f"taken: {len(wanted)} tensors" in told
    assert {name.partition(",")[0] for name in WRITERS} == {known.name for known in LAYOUTS}
    scope = {}
    exec(told.partition("\n\n")[2], scope)  # the printed lines
    assert scope["encoder"].state_dict()["layer4.1.conv2.weight"].equal(online["layer4.1.conv2.weight"])
    assert not scope["encoder"].training


@pytest.mark.parametrize("layout", ["Fast-MoCo", "moco-v3", "MoCo v1 or v2"])
def test_the_momentum_copy_is_imported(tmp_path, online, target, layout):
    WRITERS[layout](online, target, tmp_path / "a.pth")
    stored = read(import_(str(tmp_path / "a.pth"), out=str(tmp_path / "new" / "b.safetensors"), branch="target"))
    assert all(stored.tensors[key].equal(value) for key, value in body(target).items())


@pytest.mark.parametrize("layout", ["SimSiam", "Barlow Twins", "torchvision or timm"])
def test_a_momentum_copy_that_is_not_there_is_refused(tmp_path, slim, layout):
    WRITERS[layout](slim, slim, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=f"--branch target: .* is of {layout}, which has no momentum copy"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"), branch="target")


def test_what_was_dropped_is_told(tmp_path, capsys, online, target):
    write_moco(online, target, tmp_path / "a.pth")
    import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    assert "dropped: encoder_k (123), fc (3), queue (2)" in capsys.readouterr().out


@pytest.mark.parametrize("layout", WRITERS)
def test_a_renamed_key_is_refused_by_its_name(tmp_path, slim, layout):
    changed = dict(slim)
    changed["layer2.0.bn1.wait"] = changed.pop("layer2.0.bn1.weight")
    WRITERS[layout](changed, slim, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a.pth has no 'layer2.0.bn1.weight', so it is not a resnet18"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize("layout", ["SimSiam", "torchvision or timm"])
def test_a_key_too_many_is_refused_by_its_name(tmp_path, slim, layout):
    WRITERS[layout]({**slim, "layer5.gate": torch.ones(1)}, slim, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a.pth has 'layer5.gate', which is left over"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


def test_a_strange_part_is_refused_by_its_name(tmp_path, slim):
    write_barlow(slim, slim, tmp_path / "a.pth")
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    content["model"]["module.memory.bank"] = torch.ones(2)
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"'memory.bank', which is left over: no known part of Barlow Twins"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


@pytest.mark.parametrize("name", encoder.NAMES)
def test_every_resnet_is_known_by_its_weights(name):
    with torch.device("meta"):
        net = encoder.build(name).net
    assert infer(net.state_dict(), "a.pth") == name
    assert set(FORMS.values()) == set(encoder.RESNETS)


@pytest.mark.parametrize("ending", [".safetensors", ".bin"])
def test_other_architectures_of_timm_are_given_by_name(tmp_path, ending):
    """test_convnext has a classifier head.fc, and a head.norm that is the encoder's own."""
    net = shaken(timm.create_model("test_convnext"))
    write = save_file if ending == ".safetensors" else torch.save
    write(net.state_dict(), tmp_path / f"a{ending}")
    out = str(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"has no 'conv1.weight', by which a ResNet is known; add --encoder"):
        import_(str(tmp_path / f"a{ending}"), out=out)
    path = import_(str(tmp_path / f"a{ending}"), out=out, encoder="timm/test_convnext", size=64)
    found = find(str(path))
    assert (found.name, found.size) == ("timm/test_convnext", 64)
    net.reset_classifier(0)
    x = torch.randn(2, 3, 64, 64)
    assert torch.allclose(found.encoder(x), net.eval()(x), atol=1e-6)
    assert "head.norm.weight" in load_file(path)


def test_an_unknown_resnet_is_told_by_its_blocks(tmp_path, slim):
    torch.save({key: value for key, value in slim.items() if not key.startswith("layer3.1")}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="no ResNet of torchvision, with 2-2-1-2 blocks of 64 channels; add --encoder"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


class Trap:
    """Code that leaves a trace when it is run."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (open, (str(self.trace), "w"))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_refused_and_not_run(tmp_path, slim, zipped):
    content = {"state_dict": slim, "trap": Trap(tmp_path / "trace")}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"not run: io.open; save its state_dict\(\) alone$") as refused:
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "trace").exists()
    (tmp_path / "a.pth").write_bytes(pickle.dumps(content["trap"]))
    with pytest.raises(ValueError, match=r"a.pth") as refused:
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "trace").exists()


def write_text(path):
    path.write_text("weights")


def write_flipped(path):
    torch.save({"conv1.weight": torch.ones(64)}, path)
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data/0"))
        place = archive.getinfo(name).header_offset + 160
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def write_list(path):
    torch.save([torch.ones(1)], path)


def write_step(path):
    torch.save({"conv1.weight": torch.ones(1), "epoch": 3}, path)


def write_own(path):
    torch.save({"format": 1, "step": 3, "learner": {}, "optimizer": {}}, path)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (None, "no file at"),
        (write_own, "is a checkpoint of fastmoco itself; other commands and fastmoco.load take it as it is"),
        (write_text, "is damaged, or no file of torch"),
        (write_flipped, "is damaged: its checksums differ; copy it anew$"),
        (write_list, "holds a list and no weights by name"),
        (write_step, "has 'epoch', which is no weight but of type int"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, write, words):
    if write:
        write(tmp_path / "a.pth")
    with pytest.raises(ValueError, match=words) as refused:
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    assert "\n" not in str(refused.value)


def test_a_reason_that_is_no_sentence_is_left_out(tmp_path):
    (tmp_path / "a.pth").write_text("i am no file of torch")
    with pytest.raises(ValueError, match=r"no file of torch; give weights"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


def test_another_librarys_words_are_cut_between_them(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(f"not a ZIP archive {'word ' * 40}. This is an internal miniz error. If you see it")

    (tmp_path / "a.pth").write_text("some")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(ValueError, match=r"no file of torch: not a ZIP archive( word)+ \.\.\.; give weights"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


def test_a_place_that_cannot_be_written_is_told_with_what_to_give(tmp_path, online):
    torch.save(online, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth/b\.safetensors: (Not a directory|File exists); give another --out$"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "a.pth" / "b.safetensors"))
    (tmp_path / "b.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"^cannot write .*b\.safetensors: .*; give another --out$"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"), overwrite=True)


def test_what_exists_is_kept(tmp_path, online):
    torch.save(online, tmp_path / "a.pth")
    out = tmp_path / "b.safetensors"
    out.write_text("mine")
    with pytest.raises(ValueError, match="exists and is kept; add --overwrite"):
        import_(str(tmp_path / "a.pth"), out=str(out))
    assert out.read_text() == "mine"
    with pytest.raises(ValueError, match=r"use a name that ends in .safetensors"):
        import_(str(tmp_path / "a.pth"), out=str(tmp_path / "b.pt"))
    import_(str(tmp_path / "a.pth"), out=str(out), overwrite=True)
    assert read(out).name == "resnet18"


def test_the_small_vit_of_moco_v3_has_other_heads_than_timms_and_is_refused(tmp_path):
    file = tmp_path / "vit-s.pth.tar"
    torch.save({"state_dict": {"module.base_encoder.cls_token": torch.zeros(1, 1, 384)}}, file)
    with pytest.raises(ValueError, match="moco-v3's ViT-S has 12 heads and timm/vit_small_patch16_224 has 6"):
        import_(str(file), encoder="timm/vit_small_patch16_224", out=str(tmp_path / "a.safetensors"))
