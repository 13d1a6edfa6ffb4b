"""`fastmoco evaluate knn | linear | semi | finetune`."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from fastmoco.exam import USUAL, Shared, conclude, latest, prepare
from fastmoco.flags import Flag, Float, Int, Labelled, Records, Weights, given
from fastmoco.spread import spread

LinearPreset = Literal["suited", "paper", "paper-20"]
SemiPreset = Literal["tuned", "paper"]


@spread("evaluate knn", latest)
def knn(weights: Weights, data: Labelled, *, out: Records = "", terms: Shared = USUAL) -> dict[str, float]:
    """By nearest neighbours: of 20, and of 200, each votes with the weight exp(cosine / 0.07). Nothing is trained."""
    from fastmoco.evaluate.knn import evaluate

    exam = prepare(weights, data, out, terms)
    return conclude(exam, "knn", "weighted, temperature 0.07, exact", evaluate(exam.subject))


@spread("evaluate linear", latest)
def linear(
    weights: Weights,
    data: Labelled,
    *,
    cached: Flag = False,
    looks: Int = None,
    preset: LinearPreset = "suited",
    epochs: Int = None,
    lr: Float = None,
    batch: Int = None,
    out: Records = "",
    terms: Shared = USUAL,
) -> dict[str, float]:
    """By a linear classifier on the frozen encoder: the paper's protocol, by LARS with new crops in every epoch.

    Args:
        cached: embed the crops of the first epochs only, and let them take turns; the classifier is the same.
        looks: crops of each image, if cached; 10 by default.
        preset: paper is 90 epochs at rate 0.8 and batch 4096, paper-20 what the paper takes after 20 epochs of
            pre-training; suited is the one of the run's row, or paper, with rate and batch for a set of this size.
        epochs: passes over the images; by default the preset's.
        lr: the learning rate; by default the preset's.
        batch: images in a step; by default the preset's.
    """
    from fastmoco import protocols
    from fastmoco.evaluate.linear import LOOKS, evaluate, evaluate_cached, suited

    _refuse(preset, get_args(LinearPreset))
    if looks is not None and (looks < 1 or not cached):
        raise ValueError(f"--looks {looks}: use 1 or more, with --cached")
    flags = given({"epochs": epochs, "lr": lr, "batch": batch})
    protocols.check(flags, flags=True)
    exam = prepare(weights, data, out, terms)
    named = {"paper": protocols.linear_100, "paper-20": protocols.linear_20}
    chosen = named[preset] if preset in named else suited(exam.linear(), len(exam.subject.train))
    chosen = replace(chosen, **flags)
    if not cached:
        return conclude(exam, "linear", str(chosen), evaluate(exam.subject, chosen))
    count = LOOKS if looks is None else looks
    return conclude(exam, "linear", f"{chosen}, cached, {count} looks", evaluate_cached(exam.subject, chosen, count))


@spread("evaluate semi", latest)
def semi(
    weights: Weights,
    data: Labelled,
    *,
    labels: str = "0.01",
    preset: SemiPreset = "tuned",
    epochs: Int = None,
    lr: Float = None,
    encoder_lr: Float = None,
    out: Records = "",
    terms: Shared = USUAL,
) -> dict[str, float]:
    """By learning from few labels: the classifier fast, the encoder slowly or not at all.

    Args:
        labels: a part of each class, such as 0.01, or a list of files such as SimCLR's 1percent.txt.
        preset: tuned tries five rates for the classifier on a held-out part of the labelled images; paper takes the
            5e2 that the paper prints. Below 5 % of the labels both are the paper's 1 % setting, else its 10 %.
        epochs: passes over the labelled images; by default the preset's.
        lr: the classifier's learning rate; by default the preset's.
        encoder_lr: the encoder's learning rate, of which 0 leaves it as it is; by default the preset's.
    """
    from fastmoco import protocols
    from fastmoco.evaluate.semi import evaluate, evaluate_tuned

    _refuse(preset, get_args(SemiPreset))
    flags = given({"epochs": epochs, "lr": lr, "encoder_lr": encoder_lr})
    protocols.check(flags, flags=True)
    exam = prepare(weights, data, out, terms, labels)
    # Whichever of the paper's two settings is nearer.
    nearer = protocols.semi_1 if exam.share < 0.05 else protocols.semi_10
    chosen = replace(nearer, fraction=float(f"{exam.share:.3g}"), **flags)
    tune = preset == "tuned" and lr is None
    answers = evaluate_tuned(exam.subject, chosen) if tune else evaluate(exam.subject, chosen)
    how = "lr chosen by held-out labels, " if tune else ""
    return conclude(exam, "semi", f"{chosen}, {how}labels {Path(labels).name}", answers)


@spread("evaluate finetune", latest)
def finetune(
    weights: Weights,
    data: Labelled,
    *,
    labels: str = "1.0",
    epochs: Int = None,
    lr: Float = None,
    decay: Float = None,
    batch: Int = None,
    out: Records = "",
    terms: Shared = USUAL,
) -> dict[str, float]:
    """By fine-tuning all weights: AdamW with lower rates for earlier stages, a warm-up and a cosine.

    Args:
        labels: a part of each class, such as 0.1, or a list of files.
        epochs: passes over the labelled images; by default 30, and for a small set as many as make 500 steps.
        lr: the classifier's learning rate; 0.001 by default.
        decay: the rate of each stage as a part of the next one's; 0.75 by default.
        batch: images in a step; 64 by default.
    """
    from fastmoco.evaluate.finetune import evaluate
    from fastmoco.protocols import Finetune, check

    flags = given({"epochs": epochs, "lr": lr, "decay": decay, "batch": batch})
    check(flags, flags=True)
    exam = prepare(weights, data, out, terms, labels)
    chosen = replace(Finetune() if epochs is None else Finetune(steps=0), **flags)
    return conclude(exam, "finetune", f"{chosen}, labels {Path(labels).name}", evaluate(exam.subject, chosen))


def _refuse(preset: str, known: tuple[str, ...]) -> None:
    """In Python a misspelt one would be taken for another."""
    if preset not in known:
        raise ValueError(f"--preset {preset}: use {', '.join(known)}")
