from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import paint_subject

from fastmoco import encoder, protocols
from fastmoco.evaluate import semi
from fastmoco.evaluate.fit import Classifier
from fastmoco.evaluate.subject import Subject
from fastmoco.images import Part
from fastmoco.protocols import Semi

CPU = torch.device("cpu")


@pytest.fixture
def subject(tmp_path):
    return paint_subject(tmp_path / "images", 30)


def test_the_papers_presets_are_as_printed():
    assert protocols.semi_1 == Semi(0.01, epochs=60, lr=500.0, encoder_lr=0.0, batch=256)
    assert protocols.semi_10 == Semi(0.10, epochs=20, lr=500.0, encoder_lr=1e-6, batch=256)


@pytest.mark.parametrize(("epochs", "drops"), [(60, (36, 48)), (20, (12, 16))])
def test_the_rate_falls_to_a_fifth_twice(epochs, drops):
    plan = semi.course(replace(protocols.semi_1, epochs=epochs))
    for per_epoch in (1, 7, 50):
        steps = epochs * per_epoch
        rates = [plan.rate(step / steps) for step in range(steps)]
        for start, stop, rate in ((0, drops[0], 1.0), (*drops, 0.2), (drops[1], epochs, 0.04)):
            assert rates[start * per_epoch : stop * per_epoch] == pytest.approx([rate] * (stop - start) * per_epoch)


def test_the_optimiser_is_sgd_with_nesterov_and_no_decay():
    made = encoder.build("timm/test_resnet")
    classifier = Classifier(made, made.width, 3, frozen=False, seed=0)
    optimizer = semi.course(protocols.semi_10).optimizer(classifier)
    assert isinstance(optimizer, torch.optim.SGD)
    assert [group["lr"] for group in optimizer.param_groups] == [500.0, 1e-6]
    for group in optimizer.param_groups:
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 0)
    frozen = semi.course(protocols.semi_1).optimizer(classifier)
    assert sum(len(group["params"]) for group in frozen.param_groups) == 2


def test_the_encoder_of_a_subject_never_changes(subject):
    before = {name: value.clone() for name, value in subject.encoder.state_dict().items()}
    answers = dict(semi.evaluate(subject, Semi(0.1, epochs=2, lr=0.5, encoder_lr=0.1, batch=8)))
    assert set(answers) == {"semi/top1", "semi/top5"}
    assert all(value.equal(before[name]) for name, value in subject.encoder.state_dict().items())


def test_a_rate_of_its_own_changes_the_encoder_and_a_rate_of_zero_does_not(subject, monkeypatch):
    learnt = {}
    ask = Subject.ask
    monkeypatch.setattr(Subject, "ask", lambda self, made, what: learnt.update(made=made) or ask(self, made, what))
    for rate, same in ((0.0, True), (0.1, False)):
        dict(semi.evaluate(subject, Semi(0.1, epochs=1, lr=0.5, encoder_lr=rate, batch=8)))
        ours, theirs = subject.encoder.state_dict(), learnt["made"].encoder.state_dict()
        assert all(theirs[name].equal(value) for name, value in ours.items()) == same


def test_the_rate_is_chosen_on_labelled_images_alone(subject, monkeypatch):
    tried = []
    fit = semi._fit

    def record(trial, protocol, what):
        tried.append((protocol.lr, sorted(place for place, _ in _names(trial.train)), len(trial.test)))
        scores, labels = fit(trial, protocol, what)
        # Whatever is learnt: the second of three rates is right more often than the others.
        scores = torch.nn.functional.one_hot(labels, 3).float()
        wrong = {0.5: 2, 5.0: 0}.get(protocol.lr, 4)
        scores[:wrong] = 1 - scores[:wrong]
        return scores, labels

    monkeypatch.setattr(semi, "_fit", record)
    protocol = Semi(0.1, epochs=1, lr=1.0, encoder_lr=0.0, batch=8)
    answers = dict(semi.evaluate_tuned(subject, protocol, rates=(50.0, 0.5, 5.0)))
    assert answers["semi/lr"] == 5.0
    assert [lr for lr, _, _ in tried] == [0.5, 5.0, 50.0, 5.0]
    names = sorted(place for place, _ in _names(subject.train))
    for lr, taken, judged in tried[:3]:
        assert lr > 0
        assert (len(taken), judged) == (21, 9)  # every third of ten in each class judges
        assert set(taken) < set(names)
    assert tried[3][1:] == (names, 12)  # then all labelled images, and the held-out ones of the set


def test_a_rate_that_diverges_is_not_chosen(subject, monkeypatch):
    fit = semi._fit

    def diverge(trial, protocol, what):
        if protocol.lr > 1:
            raise FloatingPointError("the weights are not finite any more")
        return fit(trial, protocol, what)

    monkeypatch.setattr(semi, "_fit", diverge)
    protocol = Semi(0.1, epochs=2, lr=1.0, encoder_lr=0.0, batch=8)
    assert semi.choose(subject, protocol, (0.05, 500.0)) == 0.05
    with pytest.raises(FloatingPointError, match="no rate leaves weights and scores finite"):
        semi.choose(subject, protocol, (500.0,))


def test_weights_that_are_finite_may_make_scores_that_are_not(subject):
    classifier = subject.classifier(frozen=True)
    classifier.head.weight.data.fill_(3e38)
    classifier.head.bias.data.fill_(3e38)
    with pytest.raises(FloatingPointError, match="trying: the scores are not finite; use a lower --lr"):
        subject.ask(classifier, "trying")


def _names(images):
    return [(images.name(place), place) for place in range(len(images))]


def test_too_few_labels_to_choose_by_are_told(subject):
    few = replace(subject, train=Part(subject.train, np.array([0, 1, 10, 11, 20])))
    with pytest.raises(ValueError, match="5 labelled images are too few to choose a rate by"):
        semi.choose(few, protocols.semi_1, semi.RATES)
