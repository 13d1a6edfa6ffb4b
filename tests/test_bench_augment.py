import json
import math
from dataclasses import replace
from importlib import util

import pytest
import torch
from PIL import Image

from fastmoco.augment import MEAN, STD, draw
from fastmoco.bench import augment as bench
from fastmoco.bench import peers
from fastmoco.loader import finish
from fastmoco.methods import both, encode
from fastmoco.randomness import key
from fastmoco.recipe import Augment

CPU = torch.device("cpu")
COUNT = 400
NOTHING = Augment(jitter_p=0.0, grey_p=0.0, blur_p=0.0, flip_p=0.0)


def by_us(augment, picture):
    view = replace(both(encode)[0], augment=augment)
    return finish(picture.expand(1, COUNT, -1, -1, -1), draw(augment, key(1, torch.arange(COUNT))[None]), view)[0]


def by_kornia(augment, picture):
    pytest.importorskip("kornia")
    return peers.by_kornia(augment)(picture.float().expand(COUNT, -1, -1, -1) / 255)


def by_torchvision(augment, picture):
    image, change = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()), peers.by_torchvision(augment)
    return torch.stack([change(image) for _ in range(COUNT)])


@pytest.fixture(params=[by_us, by_kornia, by_torchvision], ids=["ours", "kornia", "torchvision"])
def looks(request):
    """Many looks of one 8-bit picture, from 0 to 1."""

    def make(augment, picture):
        torch.manual_seed(0)
        peers.random.seed(0)
        out = request.param(augment, picture)
        return out * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)

    return make


def about(part, p):
    """Within four deviations of a count of so many."""
    return abs(part.float().mean() - p) <= 4 * math.sqrt(p * (1 - p) / COUNT)


def colour(red, green, blue):
    return torch.tensor([red, green, blue], dtype=torch.uint8)[:, None, None].expand(3, 16, 16)


def test_all_leave_a_picture_as_it_is_where_nothing_is_asked_for(looks):
    picture = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    assert torch.allclose(looks(NOTHING, picture), picture / 255, atol=1e-6)


def test_all_flip_turn_grey_and_jitter_as_often(looks):
    picture = colour(200, 100, 50).clone()
    picture[:, :, :8] = 0
    flipped = looks(replace(NOTHING, flip_p=0.5), picture)[:, 0, 0, 0] > 0.5
    assert about(flipped, 0.5)
    red, _, blue = looks(replace(NOTHING, grey_p=0.2), colour(200, 100, 50))[..., 0, 0].unbind(1)
    assert about((red - blue).abs() < 1e-5, 0.2)
    red, _, _ = looks(replace(NOTHING, jitter_p=0.8), colour(200, 100, 50))[..., 0, 0].unbind(1)
    assert about((red - 200 / 255).abs() > 1e-5, 0.8)


@pytest.mark.parametrize(("kind", "picture"), [(0, colour(100, 100, 100)), (2, colour(140, 70, 70))])
def test_all_change_brightness_and_saturation_over_the_same_range(looks, kind, picture):
    jitter = tuple(0.4 * (place == kind) for place in range(4))
    red, _, blue = looks(replace(NOTHING, jitter=jitter, jitter_p=1.0), picture)[..., 0, 0].unbind(1)
    factor = red / (100 / 255) if kind == 0 else (red - blue) / (70 / 255)
    assert 0.58 < factor.min() < 0.64
    assert 1.36 < factor.max() < 1.42
    assert abs(factor.mean() - 1) < 4 * 0.8 / math.sqrt(12 * COUNT)


def test_all_change_contrast_over_the_same_range(looks):
    picture = colour(90, 90, 90).clone()
    picture[:, :, :8] = 150
    x = looks(replace(NOTHING, jitter=(0.0, 0.4, 0.0, 0.0), jitter_p=1.0), picture)
    factor = (x[:, 0, 0, 0] - x[:, 0, 0, -1]) / (60 / 255)
    assert 0.58 < factor.min() < 0.64
    assert 1.36 < factor.max() < 1.42


def test_all_turn_hues_over_the_same_part_of_the_circle(looks):
    x = looks(replace(NOTHING, jitter=(0.0, 0.0, 0.0, 0.1), jitter_p=1.0), colour(200, 50, 50))
    red, green, blue = x[..., 0, 0].unbind(1)
    turned = (green - blue) / (150 / 255) / 6  # between red and its neighbours on the circle, one of the two is lowest
    assert (red - 200 / 255).abs().max() < 0.01
    assert -0.105 < turned.min() < -0.09
    assert 0.09 < turned.max() < 0.105


def test_all_blur_as_widely(looks):
    line = torch.zeros(3, 33, 33, dtype=torch.uint8)
    line[:, :, 16] = 255
    profile = looks(replace(NOTHING, blur_p=1.0), line)[:, 0, 16].clamp(min=0)
    width = ((profile * (torch.arange(33) - 16.0) ** 2).sum(1) / profile.sum(1)).sqrt()
    assert width.min() < 0.3
    assert 1.8 < width.max() < 2.1
    assert abs(width.mean() - 1.05) < 0.15
    sharp = looks(replace(NOTHING, blur_p=0.5, blur_sigma=(1.0, 2.0)), line)[:, 0, 16, 16] > 0.9
    assert about(sharp, 0.5)


def test_the_record_has_every_contender_and_its_ratio(tmp_path, capsys):
    record = bench.measure(32, 8, CPU, False, 0.01, str(tmp_path / "augment.json"))
    assert json.loads((tmp_path / "augment.json").read_text()) == record
    rows = {row["name"]: row for row in record["rows"]}
    there = ["ours", "ours, no blur", "kornia", "torchvision, one by one"]
    assert list(rows) == [name for name in there if name != "kornia" or util.find_spec("kornia")]
    shown = capsys.readouterr().out
    for name, row in rows.items():
        assert row["ratio"] == pytest.approx(rows["ours"]["images_per_second"] / row["images_per_second"], rel=0.01)
        assert all(0 < each < math.inf for each in row["rounds_milliseconds"])
        assert name in shown
    assert record["bench"] == "augment"
    assert (record["size"], record["batch"], record["compile"]) == (32, 8, False)
    assert record["draw_milliseconds"] > 0


def test_one_by_one_takes_fewer_images_and_is_compared_by_the_image(monkeypatch):
    monkeypatch.setattr(bench, "FEW", 2)
    ours, *_, last = bench.measure(32, 8, CPU, False, 0.01, "")["rows"]
    assert last["images_per_second"] == pytest.approx(2 / last["milliseconds"] * 1e3, rel=0.01)
    assert last["ratio"] == pytest.approx((last["milliseconds"] / 2) / (ours["milliseconds"] / 8), rel=0.01)


def test_a_missing_kornia_is_said(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    record = bench.measure(32, 4, CPU, False, 0.01, "")
    assert "kornia is not installed" in capsys.readouterr().out
    assert "kornia" not in record
    assert "kornia" not in [row["name"] for row in record["rows"]]


def test_what_is_compiled_stands_beside_what_is_not_and_what_does_not_blur(monkeypatch):
    given, made = [], []

    def compiled(function, dynamic):
        given.append(function)
        return lambda crops, look, view: made.append(view.augment) or function(crops, look, view)

    monkeypatch.setattr(torch, "compile", compiled)
    names = [row["name"] for row in bench.measure(32, 4, CPU, True, 0.01, "")["rows"]]
    assert names[:3] == ["ours", "ours, not compiled", "ours, no blur"]
    assert given == [finish, finish]
    assert set(made) == {Augment(), Augment(blur_p=0.0)}


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batch=0"):
        bench.measure(32, 0, CPU, False, 0.01, "")
