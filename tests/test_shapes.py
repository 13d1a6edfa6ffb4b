import torch

from fastmoco.evaluate.knn import vote
from fastmoco.evaluate.scores import top1
from fastmoco.shapes import CLASSES, COUNTS, draw


def test_the_set_is_the_same_every_time_and_balanced():
    train, labels = draw("train")
    again, _ = draw("train")
    assert train.equal(again)
    assert train.shape == (COUNTS["train"], 3, 32, 32)
    assert torch.bincount(torch.tensor(labels)).tolist() == [COUNTS["train"] // len(CLASSES)] * len(CLASSES)


def test_no_held_out_image_is_among_those_to_learn_from():
    seen = {image.numpy().tobytes() for image in draw("train")[0]}
    assert len(seen) == COUNTS["train"]
    assert not seen & {image.numpy().tobytes() for image in draw("val")[0]}


def test_pixels_alone_do_badly_and_patterns_without_their_nuisances_do_not():
    (train, train_labels), (val, val_labels) = draw("train"), draw("val")
    pixels = [images.flatten(1).float() - 127 for images in (val, train)]
    right = top1(vote(*pixels, torch.tensor(train_labels), 10), torch.tensor(val_labels))
    assert 15 < right < 60  # there is something in them, but little
    # The size of the spectrum does not know where a pattern begins, and shows that the classes differ at all.
    spectra = [torch.fft.rfft2(images.float().mean(1)).abs().flatten(1) for images in (val, train)]
    for spectrum in spectra:
        spectrum[:, 0] = 0
    assert top1(vote(*spectra, torch.tensor(train_labels), 10), torch.tensor(val_labels)) > right + 15
