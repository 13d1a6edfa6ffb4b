import pickle
import shutil
from pathlib import Path

import pytest
import torch
from pictures import TINY, paint
from safetensors.torch import save_file

import fastmoco
from fastmoco import checkpoint, encoder
from fastmoco.pretrained import find

BRANCHES = {"online": "online.encoder.net.", "target": "momentum.encoder.net."}  # as a checkpoint calls them


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("FASTMOCO_DATA", "TORCH_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def pretrain(folder, row):
    options = {"set": TINY, "epochs": 1, "batch": 8, "knn_every": 0, "workers": 0, "device": "cpu"}
    images = paint(folder / "images", 16)
    return fastmoco.pretrain(str(images), recipe=row, out=str(folder / "run"), **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pretrain(tmp_path_factory.mktemp("momentum"), "pocket/shapes")


@pytest.fixture(scope="module")
def siamese(tmp_path_factory):
    """A run whose target is the online branch."""
    return pretrain(tmp_path_factory.mktemp("siamese"), "table7/simsiam")


def last(run):
    return run / "checkpoints" / "last.pt"


def weights_in(file, branch="online"):
    learner = torch.load(file, weights_only=True)["learner"]
    prefix = BRANCHES[branch]
    return {key.removeprefix(prefix): value for key, value in learner.items() if key.startswith(prefix)}


def same(net, tensors):
    own = net.state_dict()
    return own.keys() == tensors.keys() and all(value.equal(tensors[key]) for key, value in own.items())


def refusal(weights, **options):
    """The one line."""
    with pytest.raises((ValueError, PermissionError)) as refused:
        find(str(weights), **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("place", ["", "checkpoints/last.pt"])
def test_a_run_folder_and_its_checkpoint_give_the_branch_that_is_asked_for(run, place, branch):
    found = find(str(run / place), branch=branch)
    assert same(found.encoder.net, weights_in(last(run), branch))
    assert (found.name, found.size, found.folder) == ("timm/test_resnet", 16, run)
    assert not found.encoder.training
    assert branch in found.words or branch == "online"


def test_the_branches_differ(run):
    assert not same(find(str(run)).encoder.net, weights_in(last(run), "target"))


def test_the_size_is_that_of_the_largest_view(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "a")
    text = (folder / "recipe.py").read_text()
    (folder / "recipe.py").write_text(text.replace("size=16", "size=20", 1))
    assert (folder / "recipe.py").read_text() != text
    assert find(str(last(folder))).size == 20
    assert find(str(folder)).size == 16  # an encoder file says its own
    (folder / "recipe.py").write_text("# of something else")
    assert find(str(folder)).size == 16


def test_a_home_folder_may_be_written_short(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.parent))
    assert find("~/run").name == "timm/test_resnet"


def test_a_checkpoint_elsewhere_needs_the_name_of_its_encoder(run, tmp_path):
    shutil.copy(last(run), tmp_path / "some.pt")
    assert "some.pt is not in a run folder" in refusal("some.pt")
    assert "add --encoder NAME" in refusal("some.pt")
    found = find("some.pt", encoder="timm/test_resnet", branch="target")
    assert same(found.encoder.net, weights_in(last(run), "target"))
    assert (found.size, found.folder) == (224, None)


def test_an_encoder_file_says_itself_what_it_is(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(run / "encoder.safetensors", tmp_path / "elsewhere")
    shutil.copy(run / "encoder.safetensors", tmp_path / "mine.safetensors")
    for weights, folder in ((run / "encoder.safetensors", run), ("elsewhere", None), ("mine.safetensors", None)):
        found = find(str(weights))
        assert same(found.encoder.net, weights_in(last(run)))
        assert (found.name, found.size, found.folder) == ("timm/test_resnet", 16, folder)


def test_an_encoder_file_has_one_branch(run):
    assert "encoder.safetensors has one branch only" in refusal(run / "encoder.safetensors", branch="target")
    assert "random has one branch only" in refusal("random", encoder="timm/test_resnet", branch="target")


@pytest.mark.parametrize("place", ["", "checkpoints/last.pt"])
def test_a_run_with_stopped_gradient_has_no_target_branch(siamese, place):
    assert "--branch target: " in refusal(siamese / place, branch="target")
    assert "its target is the online branch; leave it out" in refusal(siamese / place, branch="target")
    assert same(find(str(siamese / place)).encoder.net, weights_in(last(siamese)))


def test_random_weights_are_those_of_the_seed():
    first, again = (find("random/timm/test_resnet", seed=3) for _ in range(2))
    assert same(first.encoder.net, again.encoder.net.state_dict())
    assert not same(find("random/timm/test_resnet", seed=4).encoder.net, first.encoder.net.state_dict())
    torch.manual_seed(3)
    assert same(encoder.build("timm/test_resnet").net, first.encoder.net.state_dict())
    assert (first.name, first.size, first.folder) == ("timm/test_resnet", 224, None)
    assert "seed 3" in first.words


def test_random_weights_are_of_the_encoder_that_is_named():
    assert find("random").name == "resnet50"
    assert find("random", encoder="resnet18-small").name == "resnet18-small"
    assert find("random/resnet18", encoder="resnet18").name == "resnet18"
    assert "--encoder resnet34: random/resnet18 holds a resnet18" in refusal("random/resnet18", encoder="resnet34")
    assert "unknown encoder 'resnet7'" in refusal("random/resnet7")


def hub(name):
    """Where torch.hub looks for torchvision's weights."""
    import torchvision

    url = torchvision.models.get_model_weights(name).DEFAULT.url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def test_torchvisions_weights_are_fetched_only_if_asked_for(tmp_path):
    words = refusal("torchvision/resnet18")
    assert "torchvision/resnet18 is not in" in words
    assert str(tmp_path) in words
    assert "add --download" in words
    assert "the nearest known: torchvision/resnet" in refusal("torchvision/resnt18")


def test_torchvisions_weights_are_those_in_the_folder_of_torch_hub():
    import torchvision

    theirs = torchvision.models.resnet18()
    torch.save(theirs.state_dict(), hub("resnet18"))
    found = find("torchvision/resnet18")
    assert (found.name, found.size, found.folder) == ("resnet18", 224, None)
    theirs.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 32, 32)
    assert found.encoder(x).equal(theirs.eval()(x))


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_the_trap_works(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "ran"), protocol=2))
    assert (tmp_path / "ran").exists()


def write_half(path):
    torch.save({"weight": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("this is no checkpoint"),
        lambda path: path.write_bytes(b""),
        write_half,
        lambda path: torch.save({"conv1.weight": Trap(Path("ran"))}, path),
        lambda path: path.write_bytes(pickle.dumps(Trap(Path("ran")), protocol=2)),
    ],
    ids=["text", "empty", "half", "code", "pickle"],
)
@pytest.mark.parametrize("weights", ["torchvision/resnet18", "some.pt", "some.safetensors"])
def test_a_file_that_is_damaged_or_holds_code_is_one_line_and_nothing_in_it_is_run(tmp_path, weights, spoil):
    file = hub("resnet18") if weights.startswith("torchvision") else tmp_path / weights
    spoil(file)
    refusal(weights, encoder="resnet18")
    assert not (tmp_path / "ran").exists()


def test_a_damaged_file_of_torch_hub_is_not_called_a_failed_download():
    write_half(hub("resnet18"))
    words = refusal("torchvision/resnet18")
    assert hub("resnet18").name in words
    assert "cannot download" not in words


@pytest.mark.parametrize("place", ["encoder.safetensors", "checkpoints/last.pt"])
@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_damaged_file_of_a_run_is_refused_by_its_name(run, tmp_path, place, harm):
    folder = shutil.copytree(run, tmp_path / "a")
    content = (folder / place).read_bytes()
    middle = len(content) // 2
    if harm == "cut":
        (folder / place).write_bytes(content[:middle])
    elif place.endswith(".pt"):  # a safetensors file has no checksums
        (folder / place).write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    else:
        (folder / place).write_bytes(b"\xff" * 8 + content[8:])
    assert "damaged" in refusal(folder / place)
    assert str(folder / place) in refusal(folder / place)


def test_a_checkpoint_that_is_not_of_a_training_is_one_line(tmp_path):
    """Such as that of an evaluation which was stopped."""
    checkpoint.save(tmp_path / "some", {"step": 3, "learnt": {}, "optimizer": {}})
    assert "last.pt" in refusal("some/last.pt", encoder="resnet18")
    torch.save({"step": 3}, "other.pt")
    assert "other.pt is not a checkpoint of this version" in refusal("other.pt", encoder="resnet18")


def test_weights_of_another_architecture_are_refused_by_the_first_key(run, tmp_path):
    shutil.copy(last(run), tmp_path / "some.pt")
    assert "some.pt has no 'conv1.weight'" in refusal("some.pt", encoder="resnet18")
    assert "so it is not a resnet18" in refusal("some.pt", encoder="resnet18")
    tensors = {key: value.contiguous() for key, value in weights_in(last(run)).items()}
    save_file({**tensors, "more": torch.zeros(1)}, "more.safetensors", {"encoder": "timm/test_resnet"})
    assert "has 'more', which is left over, so it is not a timm/test_resnet" in refusal("more.safetensors")
    save_file({**tensors, "conv1.0.weight": torch.zeros(1)}, "other.safetensors", {"encoder": "timm/test_resnet"})
    assert "has 'conv1.0.weight' of shape [1] rather than" in refusal("other.safetensors")


def test_another_encoder_than_that_of_the_run_is_refused(run):
    for place in (run, last(run), run / "encoder.safetensors"):
        words = refusal(place, encoder="resnet18")
        assert f"--encoder resnet18: {place} holds a timm/test_resnet" in words


def test_a_file_that_does_not_say_what_it_is_is_refused():
    save_file({"weight": torch.zeros(1)}, "some.safetensors")
    assert "does not say which encoder it holds" in refusal("some.safetensors")
    save_file({"weight": torch.zeros(1)}, "other.safetensors", {"encoder": "resnet7"})
    assert "unknown encoder 'resnet7'" in refusal("other.safetensors")


def test_a_folder_that_is_no_run_folder_is_refused(run, tmp_path):
    (tmp_path / "a").mkdir()
    assert "a is no run folder, as it has no recipe.py" in refusal("a")
    shutil.copy(run / "recipe.py", "a")  # of a run that was stopped before its first checkpoint
    assert "a has no encoder.safetensors yet" in refusal("a")
    assert "a has no last.pt in checkpoints/" in refusal("a", branch="target")


def test_what_is_not_there_is_told_with_all_that_could_be():
    words = refusal("runs/absent")
    assert "no weights at 'runs/absent'" in words
    for form in ("run folder", "checkpoint", "encoder.safetensors", "random", "torchvision/NAME", "timm/NAME"):
        assert form in words
    assert "no weights at 'torchvision/'" in refusal("torchvision/")


def test_timms_weights_are_fetched_only_if_asked_for():
    assert "timm/test_resnet.r160_in1k: add --download" in refusal("timm/test_resnet.r160_in1k")
    assert "unknown weights 'timm/test_resnt'" in refusal("timm/test_resnt", download=True)


def test_an_unknown_name_in_timm_is_told_before_a_download_is_asked_for():
    assert "unknown weights 'timm/test_resnt'" in refusal("timm/test_resnt")


@pytest.mark.parametrize("name", ["resnet18", "resnet18.a1_in1k", "test_vit.r160_in1k"])
def test_timms_weights_become_an_encoder(monkeypatch, name):
    import timm

    create, theirs = timm.create_model, []

    def fetch(model, pretrained=False, **options):  # stands for the network
        made = create(model.partition(".")[0], **options)
        theirs.extend([made] * pretrained)
        return made

    monkeypatch.setattr(timm, "create_model", fetch)
    if name.startswith("test_vit"):  # whose images are normalised otherwise
        with pytest.raises(ValueError, match=r"was trained on images normalised by \(0.5, 0.5, 0.5\)"):
            find(f"timm/{name}", download=True)
        return
    found = find(f"timm/{name}", download=True)
    assert found.size == 224
    assert found.name == f"timm/{name.partition('.')[0]}"
    assert same(found.encoder.net, theirs[0].state_dict())
