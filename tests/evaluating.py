"""All evaluations one after another, in this process or as one of several ranks: evaluating.py IMAGES RUN FOLDER."""

import signal
import sys
from functools import partial
from pathlib import Path

import torch

from fastmoco import cli
from fastmoco.data import find
from fastmoco.distributed import agree, gather, leads, rank
from fastmoco.ending import parted
from fastmoco.evaluate import gain, gallery, linear, subject
from fastmoco.evaluate.judge import Judge
from fastmoco.evaluate.progress import Progress
from fastmoco.meeting import joined
from fastmoco.pretrained import find as find_weights

CPU = torch.device("cpu")
COMMANDS = {
    "knn": "evaluate knn",
    "recalibrated": "evaluate knn --recalibrate",
    "linear": "evaluate linear --epochs 3 --batch 37",
    "cached": "evaluate linear --cached --looks 2 --epochs 3 --batch 37",
    "semi": "evaluate semi --labels 0.2 --lr 0.5 --encoder-lr 0.05 --epochs 4",
    "tuned": "evaluate semi --labels 0.2 --encoder-lr 0 --epochs 2",
    "finetune": "evaluate finetune --labels 0.2 --epochs 1 --batch 9",
    "gain": "evaluate gain --seeds 1 --epochs 1",
}
STOPPED = "evaluate linear --epochs 5 --batch 37"
AFTER = 20  # steps it is stopped


def evaluate(images, run, folder, words, out="results.json"):
    """A command as it is typed; its exit code."""
    sys.argv = ["fastmoco", *words.split(), str(run), str(images), "--out", str(folder / out)]
    sys.argv += ["--device", "cpu", "--workers", "1"]
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    return 0


def evaluate_all(images, run, folder, patch=setattr):
    """In the folder are then the results, and what each classifier has learnt."""
    patch(gallery, "BLOCK", 64)
    patch(gain, "trials", partial(gain.trials, percents=(20.0,)))
    learnt = {}
    for module in (subject, linear):
        patch(module, "fit", partial(_keep, module.fit, learnt))
    for name, words in COMMANDS.items():
        learnt.clear()
        assert evaluate(images, run, folder, words) == 0
        if leads():
            torch.save(learnt, folder / f"{name}.pt")
    assert evaluate(images, run, folder, "embed", "features.npz") == 0
    answers = [_judge(images, run), _judge(images / "train", run)]
    if leads():
        torch.save(answers, folder / "judge.pt")


def _keep(fit, learnt, classifier, *given, **options):
    fit(classifier, *given, **options)
    state = {name: value.detach().clone() for name, value in classifier.state_dict().items()}
    learnt[len(learnt)] = state
    for value in state.values():
        assert gather(value[None]).eq(value).all(), "ranks have learnt different things"


def _judge(images, run):
    """Answers, and how often each rank has asked whether to halt."""
    asked = []

    def halt():
        asked.append(agree(None))
        return False

    online, target = (find_weights(str(run), branch=branch).encoder for branch in ("online", "target"))
    answer = Judge(find(str(images)), 16, threads=1).all(online, target, CPU, halt)
    assert gather(torch.tensor([len(asked)])).eq(len(asked)).all()
    return answer


def stop(images, run, folder):
    """A signal reaches the last rank alone, and all stop."""
    add, done = Progress.add, []

    def count(self, images):
        add(self, images)
        done.append(images)
        if len(done) == AFTER and rank() > 0:
            signal.raise_signal(signal.SIGTERM)

    Progress.add = count
    assert evaluate(images, run, folder, STOPPED, "stopped.json") == 128 + signal.SIGTERM
    assert len(done) == AFTER


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:]]
    with parted(), joined():
        evaluate_all(*places)
        stop(*places)
