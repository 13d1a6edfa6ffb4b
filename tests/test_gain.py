import torch
from pictures import paint_subject

from fastmoco.evaluate.gain import PERCENTS, Trial, measure, trials
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.parts import by_fraction
from fastmoco.protocols import Finetune

CPU = torch.device("cpu")


def test_the_table_has_every_encoder_method_share_and_seed_once():
    table = trials(["random init", "this encoder"], seeds=3)
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
