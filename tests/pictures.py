"""Folders of small images, and a recipe that a CPU trains on them in seconds."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import fastmoco
from fastmoco import encoder
from fastmoco.data import find
from fastmoco.evaluate.gallery import Frame, Gallery
from fastmoco.evaluate.subject import Subject

# timm's smallest ResNet on 16-px views: a step takes a few hundredths of a second.
TINY = (
    "encoder=timm/test_resnet",
    "views.*.size=16",
    "projector.widths=(16, 16)",
    "predictor.widths=(8, 16)",
    "schedule.warmup=0",
)


def paint(folder: Path, count: int, classes: int = 0, size: int = 24) -> Path:
    """Images of noise around a colour that is their class's, in class folders if there are classes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class-{number % classes}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        colour = generator.integers(0, 200, 3) if not classes else np.array([(number % classes) * 80, 90, 120])
        shape = (size + number % 3, size, 3)
        pixels = np.clip(colour + generator.integers(-40, 40, shape), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:03d}.png")
    return folder


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trace(folder: Path) -> list[tuple[int, float]]:
    """Steps and their losses, to the last bit."""
    return [(line["step"], line["train/loss"]) for line in records(folder) if "train/loss" in line]


def pretrain_a_little(images: Path, out: Path) -> Path:
    """A run folder after a few small steps: weights from which two ways to go on stay together."""
    small = ("optim.lr=0.00625", "optim.weight_decay=0.0001")
    options = {"set": (*TINY, *small), "epochs": 1, "batch": 8, "knn_every": 0, "workers": 0, "device": "cpu"}
    return fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(out), **options)


def paint_subject(folder: Path, count: int) -> Subject:
    """An encoder with random weights, and painted images of three classes."""
    paint(folder / "train", count, classes=3)
    paint(folder / "val", 12, classes=3)
    source, frame = find(str(folder)), Frame(16)
    torch.manual_seed(0)
    made = encoder.build("timm/test_resnet").eval()
    test = Gallery(source.val, frame, 1)
    return Subject(made, source.labelled, test, frame, torch.device("cpu"), workers=0, seed=0, bf16=False)
