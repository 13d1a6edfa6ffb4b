import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from fastmoco import encoder, load
from fastmoco.weights import save_encoder


def test_what_is_saved_is_loaded(tmp_path):
    made = encoder.build("resnet18-small")
    save_encoder(tmp_path / "encoder.safetensors", "resnet18-small", made, step=7, size=32)
    net = load(tmp_path)
    assert not net.training
    assert all(value.equal(made.net.state_dict()[name]) for name, value in net.state_dict().items())


def test_what_a_file_says_of_itself_is_in_the_order_of_its_names(tmp_path):
    path = tmp_path / "encoder.safetensors"  # which safetensors alone writes otherwise in each process
    save_encoder(path, "resnet18-small", encoder.build("resnet18-small"), step=7, size=32)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert list(json.loads(content[8 : 8 + length])["__metadata__"]) == ["encoder", "format", "size", "step"]
    assert length % 8 == 0, "numbers are aligned"


def write_pickle(path):
    path.write_bytes(pickle.dumps({"encoder": print}))


def write_torch(path):
    torch.save({"encoder": print}, path)


def write_nameless(path):
    save_file({"weight": torch.zeros(2)}, path)


def write_other(path):
    save_file({"weight": torch.zeros(2)}, path, {"encoder": "resnet18"})


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (None, "is no run folder, as it has no recipe.py; give the folder of a run, or a file"),
        (write_pickle, r"is damaged or no safetensors file: .*; give another, or copy it anew"),
        (write_torch, r"is damaged or no safetensors file: .*; give another, or copy it anew"),
        (write_nameless, "does not say which encoder it holds"),
        (write_other, "has no 'conv1.weight' .and 119 more., so it is not a resnet18"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, write, words):
    if write:
        write(tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=words) as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)
