import io
import math
import statistics

import numpy as np
import PIL.Image
import pytest
from matplotlib.text import Text

from fastmoco.plots import average, draw, draw_growth, gain, growth

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


# The growth of cost


def point(asked, batch, size=224, m=2, n=2, samples=12, rate=None, peak=None):
    found = {} if rate is None else {"images_per_second": rate} | ({} if peak is None else {"peak_gib": peak})
    names = {"asked": asked, "batch": batch, "size": size, "m": m, "n": n, "samples": samples}
    return names | {"fits": rate is not None} | found


GROWTH = {
    "encoder": "resnet50",
    "hardware": "an invented card",
    "precision": "bfloat16",
    "compiled": False,
    "recorded": True,
    "points": [
        point(["batch", "size", "patches"], 256, rate=1500.0, peak=30.0),
        point(["batch"], 64, rate=1200.0, peak=8.0),
        point(["batch"], 1024),
        point(["size"], 256, size=112, rate=5000.0, peak=8.0),
        point(["patches"], 256, m=1, n=1, samples=2, rate=1700.0, peak=31.0),
        point(["patches"], 256, m=2, n=3, samples=8, rate=1550.0, peak=29.0),
        point(["patches"], 256, m=2, n=1, samples=8, rate=1560.0, peak=29.0),
        point(["patches"], 256, size=225, m=3, n=4, samples=252, rate=900.0, peak=40.0),
    ],
}


def lines(panel):
    """What is drawn of what was measured, by name."""
    return {line.get_label(): line.get_xydata().tolist() for line in panel.lines if " = " in line.get_label()}


def test_growth_is_drawn_as_it_was_measured():
    batch, size, patches, *memory = draw_growth(GROWTH).axes
    assert [panel.get_title("left") for panel in (batch, size, patches)] == [
        "batch, at 224 px",
        "size, at batch 256",
        "patches, at batch 256",
    ]
    assert lines(batch) == {"m = 2, 224 px": [[64, 1200], [256, 1500]]}
    assert [xy for xy, *_ in lines(size).values()] == [[112, 5000]]
    assert lines(patches) == {
        "m = 2, 224 px": [[8, 1550], [8, 1560], [12, 1500]],
        "m = 3, 225 px": [[252, 900]],
    }
    assert lines(memory[0]) == {"m = 2, 224 px": [[64, 8], [256, 30]]}
    assert lines(memory[2])["m = 3, 225 px"] == [[252, 40]]


def test_growth_is_seen_beside_what_it_could_be():
    _, size, patches, *_ = draw_growth(GROWTH).axes
    assert size.lines[-1].get_xydata().tolist() == [[112, 4 * 1500], [224, 1500]]
    assert [text.get_text() for text in size.get_legend().get_texts()] == ["if only pixels counted"]
    (across,) = [line for line in patches.lines if line.get_linestyle() == ":"]
    assert list(across.get_ydata()) == [1700, 1700]
    assert patches.get_legend().get_texts()[0].get_text() == "MoCo v3"


def test_rates_begin_at_zero_and_numbers_that_double_are_as_far_from_each_other():
    panels = draw_growth(GROWTH).axes
    assert [panel.get_ylim()[0] for panel in panels] == [0] * 6
    assert [panel.get_xscale() for panel in panels[:3]] == ["log", "linear", "log"]
    assert [label.get_text() for label in panels[3].get_xticklabels()] == ["64", "256", "1024"]
    assert [label.get_text() for label in panels[5].get_xticklabels()] == ["2", "8", "12", "252"]


def test_points_say_what_they_are():
    figure = draw_growth(GROWTH)
    said = [{text.get_text(): text.xy for text in panel.texts} for panel in figure.axes[:3]]
    assert said[0] == {"1,200": (64, 1200), "1,500": (256, 1500), "does\nnot fit": (1024, 0)}
    assert said[2] == {"1, 3": (8, 1550), "2": (12, 1500), "4": (252, 900)}
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    assert figure.get_suptitle() == "A step of resnet50 on an invented card: bfloat16, not compiled, recorded"


def test_questions_that_were_not_asked_and_memory_that_was_not_measured_have_no_panel():
    bare = [{name: value for name, value in each.items() if name != "peak_gib"} for each in GROWTH["points"]]
    assert len(draw_growth(GROWTH | {"points": bare}).axes) == 3
    sizes = [each | {"asked": ["size"]} for each in bare if "size" in each["asked"]]
    (panel,) = draw_growth(GROWTH | {"points": sizes}).axes
    assert panel.get_xlabel() == "pixels of a side"
    assert panel.get_ylabel() == "images a second"


def test_the_figure_of_growth_is_a_file_like_others(tmp_path):
    for name in ("one.png", "other.png"):
        growth(GROWTH, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    with pytest.raises(ValueError, match=r"use \.png or \.svg"):
        growth(GROWTH, tmp_path / "growth.pdf")
