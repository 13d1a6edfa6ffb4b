import pytest
import torch
from pictures import paint

from fastmoco import encoder
from fastmoco.data import find
from fastmoco.evaluate.features import Frame, Gallery
from fastmoco.evaluate.gain import PERCENTS, Trial, measure, trials
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.evaluate.subject import Subject
from fastmoco.parts import by_fraction
from fastmoco.protocols import Finetune

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "store"))


def test_the_table_has_every_encoder_method_share_and_seed_once():
    table = trials(["random init", "this encoder"], seeds=3)
    assert len(table) == len(set(table)) == 2 * 2 * 4 * 3
    assert {trial.labels for trial in table} == set(PERCENTS) == {1.0, 5.0, 20.0, 100.0}


def test_a_probe_learns_from_the_labels_of_its_share_and_seed_alone(tmp_path):
    paint(tmp_path / "images" / "train", 40, classes=3)
    paint(tmp_path / "images" / "val", 12, classes=3)
    source = find(str(tmp_path / "images"))
    torch.manual_seed(0)
    made, frame = encoder.build("timm/test_resnet").eval(), Frame(16)
    subject = Subject(made, source.labelled, Gallery(source.val, frame, 1), frame, CPU, 0, 0, False)
    train, test = subject.features()
    for seed in (0, 1):
        index = torch.from_numpy(by_fraction(source.labelled, 0.2, seed))
        scores = probe(train.x[index], train.labels[index], test.x, 3, seed)
        value = measure(subject, Trial("this encoder", "linear", 20.0, seed), Finetune())
        assert value == top1(scores, test.labels)
    assert 0 <= measure(subject, Trial("this encoder", "finetune", 5.0, 0), Finetune(epochs=1, steps=0)) <= 100
