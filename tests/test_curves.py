import numpy as np
import PIL.Image
import pytest
from invented import finding, seeds
from matplotlib.text import Text

from fastmoco.alike import plain
from fastmoco.recipes import rows
from fastmoco.trials.curves import ablations, draw_ablations, draw_epochs, epochs, studies
from fastmoco.trials.evidence import gather

BASE = "pocket/imagenette"


def evidence(*findings):
    return gather({"some.jsonl": list(findings)}, BASE)


BOTH = [
    *seeds("table4b/mocov3", 60.0, 62.0),
    *seeds("table4b/mocov3", 66.0, 64.0, epochs=400, seconds=1200.0),
    *seeds("table4b/fast_moco", 70.0),
]


def bars(panel):
    """For each line its points and the ends of its error bars."""
    found = {}
    for container in panel.containers:
        line, _, ends = container
        spans = [each[:, 1].tolist() for bar in ends for each in bar.get_segments() if len(each)]
        found[container.get_label()] = line.get_xydata().tolist(), spans
    return found


# Epochs


def test_points_are_means_over_seeds_after_epochs_and_minutes():
    left, right = draw_epochs(evidence(*BOTH)).axes
    points, spans = bars(left)["MoCo v3, kNN"]
    assert points == [[100, 61], [400, 65]]
    deviation = np.std([60, 62], ddof=1)
    np.testing.assert_allclose(spans, [[61 - deviation, 61 + deviation], [65 - deviation, 65 + deviation]])
    assert bars(left)["MoCo v3, cached linear"][0] == [[100, 66], [400, 70]]
    assert bars(left)["Fast-MoCo, kNN"] == ([[100, 70]], [])
    np.testing.assert_allclose(bars(right)["MoCo v3, kNN"][0], [[200 / 60, 61], [800 / 60, 65]])
    assert (left.get_xscale(), right.get_xscale()) == ("log", "linear")
    assert [label.get_text() for label in left.get_xticklabels()] == ["100", "400"]
    assert (left.get_xlabel(), right.get_xlabel()) == (
        "epochs",
        "minutes of training, once compiled,\nwith the device to itself",
    )


def test_every_run_has_a_faint_line_of_its_knn():
    left, right = draw_epochs(evidence(*BOTH)).axes
    faint = [[line for line in panel.lines if line.get_alpha() is not None] for panel in (left, right)]
    assert [len(lines) for lines in faint] == [5, 5]
    assert faint[0][0].get_xydata().tolist() == [[1, 0.6], [100, 60]]
    np.testing.assert_allclose(faint[1][0].get_xydata(), [[2 / 60, 0.6], [200 / 60, 60]])
    old, new = (container[0].get_color() for container in left.containers[1::2])
    assert [line.get_color() for line in faint[0]] == [old] * 4 + [new]


def test_minutes_of_a_training_that_shared_a_device_are_left_out_unless_others_tell_its_rate():
    shared = seeds("table4b/mocov3", 60.0, jobs=2, seconds=9e9)
    (left,) = draw_epochs(evidence(*shared)).axes
    assert len(bars(left)["MoCo v3, kNN"][0]) == 1
    alone = finding("table4b/mocov3", top1=70.0, epochs=200)
    _, right = draw_epochs(evidence(*shared, alone)).axes
    assert len(draw_epochs(evidence(*shared, *seeds("table4b/fast_moco", 70.0))).axes) == 1
    np.testing.assert_allclose(bars(right)["MoCo v3, kNN"][0], [[200 / 60, 60], [400 / 60, 70]])


def test_minutes_of_different_hardware_are_not_drawn():
    slow = seeds("table4b/fast_moco", 70.0, circumstances={"hardware": "x86_64"})
    assert len(draw_epochs(evidence(*BOTH[:4], *slow)).axes) == 1
    shared = seeds("table4b/mocov3", 60.0, epochs=200, jobs=2, circumstances={"hardware": "x86_64"})
    _, right = draw_epochs(evidence(*BOTH, *shared)).axes
    assert [x for x, _ in bars(right)["MoCo v3, kNN"][0]] == pytest.approx([200 / 60, 800 / 60])


def test_one_legend_names_all_lines():
    figure = draw_epochs(evidence(*BOTH))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("MoCo v3, cached linear", "MoCo v3, kNN", "Fast-MoCo, cached linear", "Fast-MoCo, kNN"),
        "kNN on the way",
    ]
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9


# Ablations


def everything(**others):
    """Every row of the five figures; its number is its place in the list, rows of one recipe once."""
    found = {}
    for table in ("figure3a", "figure3b", "figure4a", "figure4b", "figure6"):
        for number, row in enumerate(rows(table)):
            each = finding(row, top1=float(number), **others)
            found.setdefault(plain(each.recipe), each)
    return list(found.values())


def test_panels_are_the_papers_figures():
    figure = draw_ablations(studies(evidence(*everything())), BASE)
    titles = [panel.get_title("left") for panel in figure.axes]
    assert titles == [f"Figure {each}, 100 epochs, one seed: cached linear" for each in ("3a", "3b", "4a", "4b", "6")]
    first, second, third, fourth, last = figure.axes
    assert bars(first)["2 patches"][0] == [[place, 5 + place] for place in range(5)]
    assert bars(first)["4 patches"][0] == [[place, 10 + place] for place in range(5)]
    assert [label.get_text() for label in first.get_xticklabels()] == ["input", "stage1", "stage2", "stage3", "final"]
    assert {label: [x for x, _ in line] for label, (line, _) in bars(second).items()} == {
        "m = 1": [1],
        "m = 2": [1, 2, 3, 4],
        "m = 3": list(range(1, 10)),
    }
    assert [x for x, _ in bars(third)["two patches"][0]] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]
    assert [x for x, _ in bars(fourth)["two patches"][0]] == [0.2, 1, 4, 8, 16]
    assert fourth.get_xscale() == "log"
    assert [label.get_text() for label in last.get_xticklabels()][-2:] == ["projector", "predictor"]
    assert bars(last)["2 patches"][0] == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9], [5, 10], [6, 11]]


GAMMAS = [*seeds("figure4a/gamma_050", 50.0), *seeds("figure4a/gamma_070", 51.0)]


def across(*findings):
    """The lines of the two methods in the panel of Figure 4a, by name: how they look, and how high they are."""
    study = next(each for each in studies(evidence(*GAMMAS, *findings)) if "4a" in each.title)
    (panel,) = draw_ablations([study], BASE).axes
    found = {line.get_label(): line for line in panel.lines if line.get_label() in ("MoCo v3", "Fast-MoCo")}
    return {name: (line.get_linestyle(), *line.get_ydata()) for name, line in found.items()}


def test_the_two_methods_are_lines_across():
    old, new = seeds("table4b/mocov3", 60.0), seeds("table4b/fast_moco", 70.0, 71.0)
    assert across(*old, *new) == {"MoCo v3": (":", 65.0, 65.0), "Fast-MoCo": ("--", 75.5, 75.5)}
    assert across(*new) == {"Fast-MoCo": ("--", 75.5, 75.5)}
    assert across(*seeds("table4b/fast_moco", 70.0, epochs=20)) == {}


def test_one_seed_is_told_only_where_no_row_has_more():
    few = evidence(*GAMMAS, *seeds("figure4a/gamma_090", 50.0, 51.0))
    assert [each.title for each in studies(few)] == ["Figure 4a, 100 epochs: cached linear"]


def test_panels_have_one_scale():
    low, high = draw_ablations(
        studies(evidence(*GAMMAS, *seeds("figure4b/alpha_1", 9.0), *seeds("figure4b/alpha_4", 8.0))), BASE
    ).axes
    assert low.get_ylim() == high.get_ylim()


def test_rows_that_were_not_run_are_absent_and_so_are_panels_without_any():
    (study,) = studies(evidence(*seeds("figure4b/alpha_8", 50.0, 51.0), *seeds("figure4b/alpha_1", 40.0)))
    (panel,) = draw_ablations([study], BASE).axes
    ((points, spans),) = bars(panel).values()
    assert points == [[1, 45.0], [8, 55.5]]
    assert len(spans) == 1
    assert studies(evidence()) == []


def test_one_row_alone_is_no_panel():
    assert studies(evidence(*seeds("figure4b/alpha_8", 50.0, 51.0))) == []


def test_one_seed_has_no_error_bars():
    for panel in draw_ablations(studies(evidence(*everything())), BASE).axes:
        assert not any(spans for _, spans in bars(panel).values())


def test_epochs_are_those_that_most_rows_have():
    some = [*everything(), finding("figure4a/gamma_050", epochs=800)]
    assert all("100 epochs" in each.title for each in studies(evidence(*some)))


# Files


@pytest.mark.parametrize(("draw", "findings"), [(epochs, BOTH), (ablations, everything())])
def test_the_same_findings_make_the_same_file(tmp_path, draw, findings):
    paths = [tmp_path / "new" / "one.png", tmp_path / "other.png"]
    assert all(draw(evidence(*findings), path) for path in paths)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with PIL.Image.open(paths[0]) as image:
        assert image.width > 1500


def test_nothing_is_drawn_of_nothing(tmp_path):
    bare = finding("table4b/mocov3", results={"online": {}})
    assert not epochs(evidence(bare), tmp_path / "epochs.png")
    assert not ablations(evidence(*seeds("table7/byol", 1.0)), tmp_path / "ablations.png")
    assert not list(tmp_path.iterdir())
