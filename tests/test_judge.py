import copy

import pytest
import torch
from pictures import paint

from fastmoco import encoder
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.data import find
from fastmoco.evaluate.features import embed
from fastmoco.evaluate.judge import Judge

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return encoder.build("timm/test_resnet").train()


def never():
    return False


def test_embeddings_are_those_of_whole_images_by_running_statistics_and_leave_no_trace(net, tmp_path):
    images = find(str(paint(tmp_path, 7))).train
    pixels = torch.stack([middle(images.read(index), 16) for index in range(7)])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = embed(net, torch.split(pixels, 3), CPU)
    assert net.training
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    by_hand = torch.cat([net.eval()(normalise(each[None] / 255)) for each in pixels]).detach()
    net.train()
    torch.testing.assert_close(found, by_hand)
    assert embed(net, [pixels], CPU, halt=lambda: True) is None


def test_without_held_out_images_a_fifth_of_each_class_is_held_out_and_does_not_vote(tmp_path):
    """Also of a list that has its classes in turn."""
    names = [path.relative_to(tmp_path) for path in sorted(paint(tmp_path, 50, classes=5).rglob("*.png"), key=str)]
    lines = [f"{names[10 * label + place]} {label}" for place in range(10) for label in range(5)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    judge = Judge(find(str(tmp_path / "list.txt")), 16, threads=1)
    assert torch.bincount(judge.test_labels).tolist() == [2] * 5
    assert torch.bincount(judge.train_labels).tolist() == [8] * 5
    voting = {image.numpy().tobytes() for image in judge.train}
    assert not voting & {image.numpy().tobytes() for image in judge.test}


def test_answers_are_percents_of_the_held_out_images(net, tmp_path):
    paint(tmp_path / "train", 30, classes=3)
    paint(tmp_path / "val", 12, classes=3)
    (tmp_path / "val" / "class-0" / "000.png").write_text("no image")  # is left out
    judge = Judge(find(str(tmp_path)), 16, threads=1)
    assert (len(judge.train), len(judge.test)) == (30, 11)
    answer = judge.all(net, None, CPU, never)
    assert set(answer) == {"val/knn_top1", "val/linear_top1", "val/images"}
    assert answer["val/images"] == 11
    assert answer["val/knn_top1"] == judge.neighbours(net, CPU, never)["val/knn_top1"]
    assert answer["val/knn_top1"] > 60  # classes differ in their colour
    assert judge.all(net, None, CPU, lambda: True) == {}


def test_the_target_branch_is_judged_beside_the_online_one_or_neither_is(net, tmp_path):
    judge = Judge(find(str(paint(tmp_path, 60, classes=3))), 16, threads=1)
    other = copy.deepcopy(net)
    torch.nn.init.zeros_(other.net.conv1[0].weight)  # it is blind
    answer = judge.all(net, other, CPU, never)
    assert answer.pop("val/target_knn_top1") == judge.neighbours(other, CPU, never)["val/knn_top1"]
    assert answer == judge.all(net, None, CPU, never)
    asked = iter([False] * 2)  # the blocks of the online one
    assert judge.all(net, other, CPU, lambda: next(asked, True)) == {}


def test_too_few_images_are_no_answer_rather_than_no_number(net, tmp_path):
    judge = Judge(find(str(paint(tmp_path, 6, classes=3))), 16, threads=1)
    assert judge.all(net, net, CPU, never) == {}
