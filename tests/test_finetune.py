import pytest
import torch
from pictures import paint_subject

from fastmoco import encoder
from fastmoco.evaluate import finetune, subject
from fastmoco.evaluate.fit import Classifier
from fastmoco.protocols import Finetune

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet18-small", "timm/test_resnet", "timm/test_vit"])
def test_every_weight_has_a_stage(name):
    made = encoder.build(name)
    depth = finetune.depths(made)
    assert set(depth) == {key for key, _ in made.net.named_parameters()}
    assert set(depth.values()) == set(range(max(depth.values()) + 1))
    if name.startswith("resnet"):
        assert depth["conv1.weight"] == 0
        assert [depth[f"layer{stage}.0.conv1.weight"] for stage in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_each_stage_learns_slower_than_the_next_and_norms_do_not_decay():
    made = encoder.build("resnet18")
    classifier = Classifier(made, 512, 3, frozen=False, seed=0)
    plan = finetune.course(Finetune(lr=0.01, decay=0.5, weight_decay=0.1), 1000)
    optimizer = plan.optimizer(classifier)
    rates, decays = {}, {}
    names = {weight: name for name, weight in classifier.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            rates[names[weight]], decays[names[weight]] = group["lr"], group["weight_decay"]
    assert set(rates) == set(names.values())  # all weights learn
    assert rates["head.weight"] == 0.01
    for stage, key in enumerate(("conv1", "layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1")):
        assert rates[f"encoder.net.{key}.weight"] == pytest.approx(0.01 * 0.5 ** (5 - stage))
    assert decays["encoder.net.layer1.0.conv1.weight"] == 0.1
    assert decays["encoder.net.layer1.0.bn1.weight"] == decays["encoder.net.bn1.bias"] == decays["head.bias"] == 0.0
    assert decays["head.weight"] == 0.1


def test_a_small_set_is_passed_more_often():
    usual = Finetune(epochs=30, steps=500, batch=64)
    assert finetune.course(usual, 10_000).epochs == 30
    assert finetune.course(usual, 128).epochs == 250
    assert finetune.course(usual, 5).epochs == 500


def test_the_rate_climbs_and_falls():
    rate = finetune.course(Finetune(epochs=10, steps=0, warmup=0.1), 640).rate  # 100 steps
    assert [rate(step / 100) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert rate(0.55) == pytest.approx(0.5)
    assert 0 < rate(0.99) < 0.001


def test_the_rate_is_never_above_the_full_one():
    for steps in range(1, 60):
        rate = finetune.course(Finetune(epochs=1, steps=0, batch=2), 2 * steps).rate
        assert max(rate(step / steps) for step in range(steps)) <= 1


def test_where_no_stages_are_known_all_weights_are_one():
    made = encoder.build("timm/test_resnet")

    class Strange(type(made.net)):
        def __getattribute__(self, name):
            if name == "group_matcher":
                raise AttributeError(name)
            return super().__getattribute__(name)

    made.net.__class__ = Strange
    assert set(finetune.depths(made).values()) == {0}


def test_colours_are_told_apart_after_some_steps(tmp_path):
    subject = paint_subject(tmp_path / "images", 60)
    before = {name: value.clone() for name, value in subject.encoder.state_dict().items()}
    answers = dict(finetune.evaluate(subject, Finetune(epochs=10, steps=0, batch=20, lr=0.01)))
    assert answers["finetune/top1"] > 90
    assert all(value.equal(before[name]) for name, value in subject.encoder.state_dict().items())


@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (4, 4), (12, 12), (13, 1)])
def test_ranks_share_a_batch_unless_it_has_too_few_images_for_them(tmp_path, monkeypatch, ranks, parts):
    judged = paint_subject(tmp_path / "images", 30)
    monkeypatch.setattr(subject, "world", lambda: ranks)
    pictures = judged.pictures(finetune.course(Finetune(batch=12), 30))
    assert (pictures.draws.world, len(pictures.draws.index(0))) == (parts, 12 // parts)
    assert repr(pictures.draws) == repr(judged.draws(finetune.course(Finetune(batch=12), 30)))
