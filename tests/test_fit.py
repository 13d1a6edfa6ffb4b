import math
import shutil
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from pictures import paint
from torch import nn

from fastmoco import encoder
from fastmoco.data import find
from fastmoco.draws import Draws
from fastmoco.evaluate import fit as module
from fastmoco.evaluate import store
from fastmoco.evaluate.features import Features
from fastmoco.evaluate.feeds import NOT_ASKED, Embeddings, Encoded, Pictures
from fastmoco.evaluate.fit import Classifier, Course, cosine, draws, fit
from fastmoco.randomness import order

CPU = torch.device("cpu")


def sgd(lr=0.1, momentum=0.9):
    return lambda classifier: torch.optim.SGD(classifier.head.parameters(), lr, momentum)


COURSE = Course("plain", epochs=3, batch=8, optimizer=sgd(), rate=cosine)


def points(count=20, width=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, width, generator=generator)
    return Features(x, torch.arange(count), torch.randint(classes, (count,), generator=generator))


def test_the_last_batch_of_an_epoch_is_filled_from_its_beginning():
    plan = draws(COURSE, 20, seed=3)
    assert (plan.per_epoch, plan.steps) == (3, 9)
    visited = order(3, 1, 20)
    epoch = torch.cat([plan.index(step) for step in range(3, 6)])
    assert epoch.tolist() == [*visited.tolist(), *visited[:4].tolist()]
    assert draws(COURSE, 5, seed=0).batch == 5  # no larger than the set


def test_images_are_cropped_and_about_half_of_them_flipped():
    plan = draws(Course("", 1, 1000, sgd(), cosine), 1000, seed=0, size=16)
    (look,) = plan.looks(0)
    assert 0.4 < look.flip.float().mean() < 0.6
    assert look.sigma.eq(0).all()
    assert not look.grey.any()
    assert look.factors.equal(torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(1, 1000, 4))
    boxes = plan.boxes(0, plan.index(0), torch.tensor([[64, 64]]).expand(1000, 2))[0]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 64**2
    assert 0.06 < area.min() < 0.12
    assert area.max() > 0.9


def test_a_fit_is_the_loop_written_by_hand():
    found = points()
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    weight, bias = classifier.head.weight.detach().clone(), classifier.head.bias.detach().clone()
    assert weight.std() < 0.02
    assert bias.eq(0).all()
    plan = draws(COURSE, 20, seed=0)
    fit(classifier, Embeddings([found], plan), COURSE, bf16=False, what="", known="a")
    speeds = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for step in range(9):
        index = plan.index(step)
        x, y = found.x[index], found.labels[index]
        error = (x @ weight.T + bias).softmax(1) - F.one_hot(y, 3)
        for value, speed, gradient in zip((weight, bias), speeds, (error.T @ x / len(y), error.mean(0)), strict=True):
            speed.mul_(0.9).add_(gradient)
            value.sub_(0.1 * (1 + math.cos(math.pi * step / 9)) / 2 * speed)
    torch.testing.assert_close(classifier.head.weight.detach(), weight)
    torch.testing.assert_close(classifier.head.bias.detach(), bias)


def test_the_head_of_a_frozen_encoder_learns_in_float32():
    heads = []
    for half in (False, True):
        classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
        plan = draws(COURSE, 20, seed=0)
        fit(classifier, Embeddings([points()], plan), COURSE, bf16=half, what="", known=f"half {half}")
        heads.append(classifier.head.weight.detach())
    assert heads[0].equal(heads[1])


def test_a_batch_of_which_nothing_could_be_read_teaches_nothing():
    found, plan = points(), draws(COURSE, 20, seed=0)
    blank = Features(found.x, found.index, torch.full_like(found.labels, NOT_ASKED))
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    before = classifier.head.weight.detach().clone()
    fit(classifier, Embeddings([blank], plan), COURSE, bf16=False, what="", known="a")
    assert classifier.head.weight.equal(before)


def test_looks_take_turns_by_epoch():
    one, two = points(), Features(torch.zeros(20, 6), torch.arange(20), points().labels)
    examples = list(Embeddings([one, two], draws(COURSE, 20, seed=0)).since(0))
    assert [x.abs().sum().item() > 0 for x, _ in examples] == [True] * 3 + [False] * 3 + [True] * 3


@pytest.mark.parametrize(("images", "batch"), [(20, 8), (24, 8), (5, 8), (1, 1), (21, 20)])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("fill", [True, False])
def test_embeddings_are_those_of_the_images_that_are_drawn(images, batch, rank, world, fill):
    batch = min(batch, images)
    plan = Draws(draws(COURSE, images, 0).views, batch, 3, 7, images, fill, rank, world)
    found = Features(torch.arange(images)[:, None].float(), torch.arange(images), torch.arange(images) + 1)
    for step in (0, 1, plan.per_epoch, plan.steps - 1, plan.steps):
        examples = list(Embeddings([found], plan).since(step))
        assert [x[:, 0].tolist() for x, _ in examples] == [plan.index(at).tolist() for at in range(step, plan.steps)]
        assert all(labels.equal(x[:, 0].long() + 1) for x, labels in examples)


def test_a_frozen_encoder_stays_as_it_is():
    torch.manual_seed(0)
    made = encoder.build("timm/test_resnet")
    before = {name: value.clone() for name, value in made.state_dict().items()}
    classifier = Classifier(made, made.width, 3, frozen=True, seed=0).train()
    assert classifier.training
    assert not made.training
    classifier(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(value.equal(before[name]) for name, value in made.state_dict().items())
    assert all(weight.grad is None for weight in made.parameters())
    assert classifier.head.weight.grad is not None


def test_an_encoder_that_learns_is_in_training():
    made = encoder.build("timm/test_resnet")
    classifier = Classifier(made, made.width, 3, frozen=False, seed=0).train()
    assert made.training
    classifier(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(weight.grad is not None for weight in made.parameters())


def test_the_label_of_an_image_that_cannot_be_read_is_not_asked(tmp_path):
    folder = paint(tmp_path / "some", 12, classes=2)
    sorted(folder.rglob("*.png"))[3].write_text("no image")
    images = find(str(folder)).train
    feed = Pictures(images, draws(COURSE, 12, seed=0, size=16), CPU, workers=0)
    steps = list(enumerate(feed.since(0)))
    assert len(steps) == 6
    for step, (x, labels) in steps:
        assert x.shape == (8, 3, 16, 16)
        for place, label in zip(feed.draws.index(step).tolist(), labels.tolist(), strict=True):
            assert label == (NOT_ASKED if place == 3 else images.labels[place])


def test_ranks_that_take_turns_take_all_batches(tmp_path):
    images = find(str(paint(tmp_path / "some", 12, classes=2))).train
    feed = Pictures(images, draws(COURSE, 12, seed=0, size=16), CPU, workers=0)
    whole = list(feed.since(0))
    for world in (2, 4, 11):  # of six steps
        for rank in range(world):
            for (x, labels), (other, asked) in zip(feed.since(rank, world), whole[rank::world], strict=True):
                assert x.equal(other)
                assert labels.equal(asked)


@pytest.mark.parametrize("step", [0, 4])
def test_what_is_encoded_are_the_embeddings_of_the_pictures(tmp_path, step):
    images = find(str(paint(tmp_path / "some", 12, classes=2))).train
    torch.manual_seed(0)
    made, plan = encoder.build("timm/test_resnet").eval(), draws(COURSE, 12, seed=0, size=16)
    found = list(Encoded(made, images, plan, CPU, workers=0, bf16=False).since(step))
    shown = list(Pictures(images, plan, CPU, workers=0).since(step))
    assert len(found) == len(shown) == 6 - step
    for (x, labels), (views, asked) in zip(found, shown, strict=True):
        assert x.equal(made(views).detach())
        assert not x.requires_grad
        assert labels.equal(asked)


class Stopping(Embeddings):
    """Sends a signal to this process after some steps."""

    def __init__(self, looks, plan, number, after):
        super().__init__(looks, plan)
        self.number, self.after = number, after

    def since(self, step):
        for count, example in enumerate(super().since(step)):
            if step == 0 and count == self.after:
                signal.raise_signal(self.number)
            yield example


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fit_that_was_stopped_goes_on_where_it_stood(number, tmp_path):
    assert threading.current_thread() is threading.main_thread()
    found, plan = points(), draws(COURSE, 20, seed=0)
    whole = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    fit(whole, Embeddings([found], plan), COURSE, bf16=False, what="", known="a")
    stopped = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    with pytest.raises(KeyboardInterrupt) as asked:
        fit(stopped, Stopping([found], plan, number, 4), COURSE, bf16=False, what="", known="a")
    assert asked.value.args == (int(number),)
    (kept,) = (tmp_path / "store" / "unfinished").iterdir()
    other = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    fit(other, Embeddings([found], plan), COURSE, bf16=False, what="", known="b")  # of other weights: from the start
    resumed = Classifier(nn.Identity(), 6, 3, frozen=True, seed=5)
    taken = []

    class Counting(Embeddings):
        def since(self, step):
            taken.append(step)
            return super().since(step)

    fit(resumed, Counting([found], plan), COURSE, bf16=False, what="", known="a")
    assert taken == [5]
    assert resumed.head.weight.equal(whole.head.weight)
    assert not kept.exists()


def test_an_encoder_that_draws_goes_on_with_the_draws_it_would_have_made(tmp_path):
    course = Course("whole", 3, 8, lambda each: torch.optim.SGD(each.parameters(), 0.1), cosine)
    found, plan = points(), draws(course, 20, seed=0)

    def run(feed):
        net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        nn.init.eye_(net[0].weight), nn.init.zeros_(net[0].bias)
        classifier = Classifier(net, 6, 3, frozen=False, seed=0)
        fit(classifier, feed, course, bf16=False, what="", known="drawn")
        return net[0].weight

    torch.manual_seed(0)
    whole = run(Embeddings([found], plan))
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        run(Stopping([found], plan, signal.SIGTERM, 4))
    (kept,) = (tmp_path / "store" / "unfinished").iterdir()
    before = shutil.copytree(kept, tmp_path / "before")
    torch.manual_seed(7)
    assert run(Embeddings([found], plan)).equal(whole)
    state = torch.load(before / "last.pt", weights_only=True)
    torch.save({key: state[key] for key in state if key not in ("rng", "cuda_rng")}, before / "last.pt")
    before.rename(kept)  # as an earlier version has left it
    assert run(Embeddings([found], plan)).isfinite().all()


def test_a_long_fit_is_saved_now_and_then(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    saved = []
    monkeypatch.setattr(module, "_save", lambda folder, step, *others: saved.append(step))
    found = points()
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    fit(classifier, Embeddings([found], draws(COURSE, 20, seed=0)), COURSE, bf16=False, what="", known="a")
    assert saved == list(range(1, 10))


@pytest.fixture
def _no_store(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "file" / "store"))
    monkeypatch.setattr(store, "_told", set())


@pytest.mark.usefixtures("_no_store")
def test_a_fit_that_cannot_be_saved_goes_on_and_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    before = classifier.head.weight.detach().clone()
    fit(classifier, Embeddings([points()], draws(COURSE, 20, seed=0)), COURSE, bf16=False, what="", known="a")
    assert not classifier.head.weight.equal(before)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("an unfinished classifier is not kept for the next time: ")
    assert said.endswith("/file/store/unfinished: Not a directory")


@pytest.mark.usefixtures("_no_store")
def test_a_fit_that_is_stopped_and_cannot_be_saved_does_not_promise_to_go_on(capsys):
    feed = Stopping([points()], draws(COURSE, 20, seed=0), signal.SIGTERM, 4)
    with pytest.raises(KeyboardInterrupt):
        fit(Classifier(nn.Identity(), 6, 3, frozen=True, seed=0), feed, COURSE, bf16=False, what="", known="a")
    assert capsys.readouterr().err.splitlines()[-1] == "stopped by SIGTERM; the same command begins anew"


def test_what_was_saved_on_the_way_and_cannot_be_removed_costs_nothing(monkeypatch, tmp_path):
    found, plan = points(), draws(COURSE, 20, seed=0)
    feed = Stopping([found], plan, signal.SIGTERM, 4)
    with pytest.raises(KeyboardInterrupt):
        fit(Classifier(nn.Identity(), 6, 3, frozen=True, seed=0), feed, COURSE, bf16=False, what="", known="a")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(module, "in_turn", refuse)
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    fit(classifier, Embeddings([found], plan), COURSE, bf16=False, what="", known="a")
    assert len(list((tmp_path / "store" / "unfinished").iterdir())) == 1


def test_a_rate_that_is_far_too_high_is_told():
    course = Course("wild", 3, 8, lambda classifier: torch.optim.SGD(classifier.head.parameters(), math.inf), cosine)
    classifier = Classifier(nn.Identity(), 6, 3, frozen=True, seed=0)
    with pytest.raises(FloatingPointError, match="classifier: the weights are not finite any more; use a lower --lr"):
        fit(
            classifier,
            Embeddings([points()], draws(course, 20, seed=0)),
            course,
            bf16=False,
            what="classifier",
            known="",
        )


def test_draws_without_filling_drop_the_incomplete_batch():
    plan = Draws(draws(COURSE, 20, 0).views, 8, 2, 0, 20)
    assert (plan.per_epoch, len(plan.index(1))) == (2, 8)
