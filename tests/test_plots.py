import io
import math
import statistics

import numpy as np
import PIL.Image
import pytest
from matplotlib.text import Text

from fastmoco.plots import average, draw, gain

ENCODERS = {"random init": 10.0, "this encoder": 40.0, "ImageNet": 80.0}
SHARES = (1.0, 5.0, 20.0, 100.0)
RECORDS = [
    {
        "encoder": encoder,
        "method": method,
        "labels": share,
        "seed": seed,
        "top1": low + 3 * math.log(share) + plus + seed * (low - 35) / 20,
    }
    for encoder, low in ENCODERS.items()
    for method, plus in (("linear", 0.0), ("finetune", 4.0))
    for share in SHARES
    for seed in range(3)
]


def scores(records, **wanted):
    return [record["top1"] for record in records if all(record[name] == value for name, value in wanted.items())]


def drawn(panel):
    """For each encoder of a panel its points, and the ends of its error bars."""
    found = {}
    for container in panel.containers:
        line, _, (bars,) = container
        found[container.get_label()] = line.get_xydata(), [ends[:, 1] for ends in bars.get_segments() if len(ends)]
    return found


def test_drawn_are_the_means_over_seeds_and_their_deviation():
    panels = draw(RECORDS, "Did it help?").axes
    assert [panel.get_title("left") for panel in panels] == ["linear probe", "fine-tuning"]
    for panel, method in zip(panels, ("linear", "finetune"), strict=True):
        lines = drawn(panel)
        assert list(lines) == list(ENCODERS)
        for encoder, (points, bars) in lines.items():
            for share, point, bar in zip(SHARES, points, bars, strict=True):
                found = scores(RECORDS, encoder=encoder, method=method, labels=share)
                mean, deviation = statistics.fmean(found), statistics.stdev(found)
                np.testing.assert_allclose(point, (share, mean))
                np.testing.assert_allclose(bar, (mean - deviation, mean + deviation))


def test_an_average_is_by_hand():
    records = [{"labels": share, "top1": top1} for share, top1 in ((5, 4.0), (1.0, 1), (5.0, 8.0), (5.0, 6.0))]
    (first, mean, nothing), second = average(records)
    assert (first, mean) == (1.0, 1.0)
    assert math.isnan(nothing)
    assert second == (5.0, 6.0, 2.0)


def test_one_seed_has_no_error_bars():
    records = [record for record in RECORDS if record["seed"] == 0]
    for panel in draw(records, "").axes:
        for points, bars in drawn(panel).values():
            assert len(points) == len(SHARES)
            assert bars == []
    assert draw(records, "").axes[0].get_ylabel() == "top-1 (%)"


def test_shares_are_plain_numbers_on_a_log_axis():
    records = [record | {"labels": 0.5} if record["labels"] == 5 else record for record in RECORDS]
    for panel in draw(records, "").axes:
        assert panel.get_xscale() == "log"
        assert [label.get_text() for label in panel.get_xticklabels()] == ["0.5", "1", "20", "100"]
        assert not len(panel.get_xticks(minor=True))


def test_there_is_one_legend_and_what_is_written_can_be_read():
    figure = draw(RECORDS, "Did it help?")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(ENCODERS)
    assert len(figure.legends) == 1
    assert not any(panel.get_legend() for panel in figure.axes)
    assert figure.get_suptitle() == "Did it help?"
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 9


def test_encoders_have_a_colour_each_that_both_panels_share():
    left, right = ([container[0] for container in panel.containers] for panel in draw(RECORDS, "").axes)
    assert [line.get_color() for line in left] == [line.get_color() for line in right]
    assert len({line.get_color() for line in left}) == len({line.get_marker() for line in left}) == 3


def test_what_was_not_measured_is_not_drawn():
    linear = [record for record in RECORDS if record["method"] == "linear"]
    assert len(draw(linear, "").axes) == 1
    some = [record for record in RECORDS if (record["encoder"], record["method"]) != ("ImageNet", "finetune")]
    left, right = draw(some, "").axes
    assert len(drawn(left)["ImageNet"][0]) == 4
    assert len(drawn(right)["ImageNet"][0]) == 0


@pytest.mark.parametrize("count", [8, 36])
def test_many_encoders_are_told_apart(count):
    records = [RECORDS[0] | {"encoder": f"encoder {number}", "top1": float(number)} for number in range(count)]
    lines = [container[0] for container in draw(records, "").axes[0].containers]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == min(count, 35)


@pytest.mark.parametrize("name", ["gain.png", "gain.SVG"])
def test_the_same_records_make_the_same_file(tmp_path, name):
    gain(RECORDS, tmp_path / name, "Did it help?")
    first = (tmp_path / name).read_bytes()
    gain(RECORDS, tmp_path / name, "Did it help?")
    assert (tmp_path / name).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_what_its_ending_says(tmp_path):
    gain(RECORDS, tmp_path / "gain.png", "Did it help?")
    gain(RECORDS, tmp_path / "gain.svg", "Did it help?")
    image = PIL.Image.open(io.BytesIO((tmp_path / "gain.png").read_bytes()))
    assert image.format == "PNG"
    assert image.width > 1500
    assert b"<svg" in (tmp_path / "gain.svg").read_bytes()[:1000]


@pytest.mark.parametrize("name", ["gain.pdf", "gain"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"use \.png or \.svg"):
        gain(RECORDS, tmp_path / name, "Did it help?")
    assert not list(tmp_path.iterdir())


def test_settings_of_matplotlib_are_left_as_they_were(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    gain(RECORDS, tmp_path / "gain.svg", "Did it help?")
    assert dict(matplotlib.rcParams) == before
