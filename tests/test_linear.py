import errno
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pictures import paint_subject
from torch import nn

from fastmoco import encoder
from fastmoco.data import find
from fastmoco.evaluate import linear
from fastmoco.evaluate.features import Features
from fastmoco.evaluate.feeds import NOT_ASKED, Embeddings
from fastmoco.evaluate.fit import Classifier, draws, fit
from fastmoco.protocols import Linear, linear_20, linear_100

CPU = torch.device("cpu")


@pytest.fixture
def subject(tmp_path):
    return paint_subject(tmp_path / "images", 40)


def test_on_imagenet_the_suited_protocol_is_the_papers():
    assert linear.suited(linear_100, 1_281_167) == Linear(epochs=90, lr=0.8, batch=4096)
    assert linear.suited(linear_20, 1_281_167) == Linear(epochs=10, lr=1.6, batch=4096)


@pytest.mark.parametrize("images", [7, 100, 5_000, 9_469, 50_000])
def test_on_other_sets_rate_times_steps_is_kept(images):
    chosen = linear.suited(linear_100, images)
    assert min(4, images) <= chosen.batch <= max(4, images // 32)
    assert chosen.lr * math.ceil(images / chosen.batch) == pytest.approx(0.8 * 313)


def separable(count=300, width=20, classes=5):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    x = 0.1 * torch.randn(count, width, generator=generator)
    x[torch.arange(count), labels] += 1
    return Features(x, torch.arange(count), labels)


def train(found, protocol, classes=5):
    plan = linear.course(protocol)
    classifier = Classifier(nn.Identity(), found.x.shape[1], classes, frozen=True, seed=0)
    fit(classifier, Embeddings([found], draws(plan, len(found.x), seed=0)), plan, bf16=False, what="", known="")
    return classifier.head


def test_separable_features_are_separated_without_a_mistake():
    found = separable()
    head = train(found, linear.suited(linear_100, len(found.x)))
    assert head(found.x).argmax(1).equal(found.labels)


def test_lars_is_not_sgd_although_nothing_decays():
    """A library's LARS may be plain SGD at weight decay 0, which is this protocol; one step tells."""
    found = separable()
    head = train(found, Linear(epochs=1, lr=0.8, batch=300))
    torch.manual_seed(0)
    before = Classifier(nn.Identity(), 20, 5, frozen=True, seed=0).head
    index = draws(linear.course(Linear(1, 0.8, 300)), 300, seed=0).index(0)
    F.cross_entropy(before(found.x[index]), found.labels[index]).backward()
    weight, gradient = before.weight.detach(), before.weight.grad
    step = weight - head.weight.detach()
    # Its length is a part of the weights' own length: rate x trust, whatever the gradient's.
    assert step.norm().item() == pytest.approx(0.8 * 0.001 * weight.norm().item(), rel=1e-4)
    torch.testing.assert_close(step / step.norm(), gradient / gradient.norm(), rtol=1e-3, atol=1e-5)
    assert step.norm() < 0.01 * 0.8 * gradient.norm()  # as long as it would be by SGD
    # The bias begins at zero, where there is no proportion to keep, so its first step is SGD's.
    torch.testing.assert_close(-head.bias.detach(), 0.8 * before.bias.grad)


def test_the_bias_adapts_once_it_is_not_zero():
    found = separable()
    one, two = (train(found, Linear(epochs=epochs, lr=0.8, batch=300)) for epochs in (1, 2))
    # The second of two steps: the rate is half, momentum brings nine tenths of the first step, which had the full rate.
    moved = two.bias.detach() - one.bias.detach() * (1 + 0.9 / 2)
    assert moved.norm().item() == pytest.approx(0.4 * 0.001 * one.bias.norm().item(), rel=1e-2)


def test_with_as_many_looks_as_epochs_cached_is_the_protocol_itself(subject):
    protocol = Linear(epochs=4, lr=20.0, batch=8)
    whole = dict(linear.evaluate(subject, protocol))
    assert set(whole) == {"linear/top1", "linear/top5"}
    assert dict(linear.evaluate_cached(subject, protocol, looks=4)) == whole
    full, cached = subject.classifier(frozen=True), linear.look(subject, linear.course(protocol), 4)
    subject.learn(linear.course(protocol), full, "")
    other = Classifier(nn.Identity(), subject.encoder.width, 3, frozen=True, seed=0)
    plan = linear.course(protocol)
    fit(other, Embeddings(cached, draws(plan, 40, 0, 16)), plan, bf16=False, what="", known="")
    torch.testing.assert_close(other.head.weight, full.head.weight, rtol=1e-3, atol=1e-4)


def test_nothing_decays():
    head = Classifier(nn.Identity(), 4, 3, frozen=True, seed=0)
    (group,) = linear.course(linear_100).optimizer(head).param_groups
    assert (group["weight_decay"], group["momentum"], group["trust"], group["all"]) == (0.0, 0.9, 0.001, True)


def test_looks_are_kept_for_the_same_weights_and_images_alone(subject, tmp_path):
    plan = linear.course(Linear(4, 1.0, 8))
    (one,) = linear.look(subject, plan, 1)
    (other,) = linear.look(replace(subject, encoder=encoder.build("timm/test_resnet").eval()), plan, 1)
    assert not other.x.equal(one.x)
    folder = tmp_path / "images" / "train"
    (folder / "class-0").rename(folder / "class-9")  # the same images, other labels
    (changed,) = linear.look(replace(subject, train=find(str(folder)).train), plan, 1)
    assert not changed.labels.equal(one.labels)


def test_looks_are_those_of_the_first_epochs_and_differ(subject):
    one, two = linear.look(subject, linear.course(Linear(4, 1.0, 8)), 2)
    assert one.x.shape == (40, subject.encoder.width)
    assert not one.x.equal(two.x)
    assert one.labels.tolist() == list(subject.train.labels)
    (again,) = linear.look(replace(subject, seed=0), linear.course(Linear(4, 1.0, 8)), 1)
    torch.testing.assert_close(again.x, one.x)


def test_a_disk_that_failed_for_a_moment_is_not_remembered(subject, monkeypatch):
    plan, read = linear.course(Linear(4, 1.0, 8)), type(subject.train).read

    def fail_at_third(self, index):
        if index == 3:
            raise OSError(errno.EIO, "Input/output error")
        return read(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(type(subject.train), "read", fail_at_third)
        (one,) = linear.look(subject, plan, 1)
    assert (one.labels == NOT_ASKED).nonzero().tolist() == [[3]]
    assert list(subject.unread) == [subject.train.name(3)]
    well = replace(subject, unread={})
    (again,) = linear.look(well, plan, 1)
    assert again.labels.tolist() == list(subject.train.labels)
    assert not well.unread


def test_looks_that_no_memory_holds_are_refused_before_any_is_embedded(subject, monkeypatch):
    plan, one = linear.course(Linear(4, 1.0, 8)), 4 * 40 * subject.encoder.width
    monkeypatch.setattr(linear, "_rooms", lambda device: {"the host": 10**12, "cuda:3": 3 * one - 1})
    monkeypatch.setattr(linear, "remembered", None)  # nothing else may be tried
    refusal = r"--looks 4: embeddings of 4 crops of 40 images take 0\.0 GiB, and cuda:3 has room for 0\.0 GiB; use "
    with pytest.raises(ValueError, match=refusal + "--looks 2$"):
        linear.look(subject, plan, 4)
    monkeypatch.setattr(linear, "_rooms", lambda device: {"the host": one - 1})
    with pytest.raises(ValueError, match=r"and the host has room for .* leave out --cached$"):
        linear.look(subject, plan, 1)


def test_looks_that_are_not_kept_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr(linear, "_rooms", lambda device: {})
    linear._admit(1, 1_281_167, 2048, CPU)
    assert capsys.readouterr().out == ""
    linear._admit(10, 1_281_167, 2048, CPU)
    assert capsys.readouterr().out == (
        "embeddings of 10 crops of 1,281,167 images take 97.7 GiB, and above 16.0 GiB are not kept for the next time; "
        "those of --looks 1 are\n"
    )


def test_the_host_has_room_for_less_where_several_processes_share_it(monkeypatch):
    alone = linear._rooms(CPU)
    monkeypatch.setattr(linear, "local_world", lambda: 4)
    assert linear._rooms(CPU) == {"the host": pytest.approx(alone["the host"] / 4, abs=2)}
    assert alone["the host"] > 2**28
