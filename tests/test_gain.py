import torch
from pictures import paint_subject

from fastmoco.evaluate import gain
from fastmoco.evaluate.gain import PERCENTS, Trial, measure, trials
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.parts import by_fraction
from fastmoco.protocols import Finetune

CPU = torch.device("cpu")


def test_the_table_has_every_encoder_method_share_and_seed_once():
    table = trials(["random init", "this encoder"], seeds=range(3))
    assert len(table) == len(set(table)) == 2 * 2 * 4 * 3
    assert {trial.labels for trial in table} == set(PERCENTS) == {1.0, 5.0, 20.0, 100.0}


def test_a_probe_learns_from_the_labels_of_its_share_and_seed_alone(tmp_path):
    subject = paint_subject(tmp_path / "images", 40)
    train, test = subject.features()
    for seed in (0, 1):
        index = torch.from_numpy(by_fraction(subject.train, 0.2, seed))
        scores = probe(train.x[index], train.labels[index], test.x, 3, seed)
        value = measure(subject, Trial("this encoder", "linear", 20.0, seed), Finetune())
        assert value == top1(scores, test.labels)
    assert 0 <= measure(subject, Trial("this encoder", "finetune", 5.0, 0), Finetune(epochs=1, steps=0)) <= 100


def test_a_fine_tuning_has_the_labels_and_the_seed_of_its_trial(tmp_path, monkeypatch):
    subject, asked = paint_subject(tmp_path / "images", 40), []

    def note(part, protocol):
        asked.append((part.seed, part.train.index.tolist()))
        return iter({"finetune/top1": 50.0}.items())

    monkeypatch.setattr(gain.finetune, "evaluate", note)
    for seed in (0, 1):
        measure(subject, Trial("this encoder", "finetune", 20.0, seed), Finetune())
    assert asked == [(seed, by_fraction(subject.train, 0.2, seed).tolist()) for seed in (0, 1)]
    assert asked[0] != asked[1]


def test_a_probe_passes_over_images_that_cannot_be_read(tmp_path, monkeypatch):
    subject, learnt = paint_subject(tmp_path / "images", 40), []
    sorted((tmp_path / "images" / "train").rglob("*.png"))[0].write_text("no image")

    def note(x, labels, test, classes, seed):
        learnt.append(x)
        return torch.zeros(len(test), classes)

    monkeypatch.setattr(gain, "probe", note)
    measure(subject, Trial("this encoder", "linear", 20.0, 0), Finetune())
    train, _ = subject.features()
    index = [place for place in by_fraction(subject.train, 0.2, 0).tolist() if place]
    assert learnt[0].equal(train.x[torch.isin(train.index, torch.tensor(index))])
    assert train.index.tolist() == list(range(1, 40))
