import errno
import io
import json
import os
import re
import tempfile
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from invented import finding, seeds

from fastmoco.compose import compose
from fastmoco.recipes import find
from fastmoco.report import filled, report, tables
from fastmoco.transfer import carry
from fastmoco.trials import curves
from fastmoco.trials.crew import scores
from fastmoco.trials.evidence import gather
from fastmoco.trials.findings import add
from fastmoco.trials.rivals import encoders, headline, lengths, reach, summary
from fastmoco.trials.tables import everything, paper_table, settings

BASE = "pocket/imagenette"


def evidence(*findings, base=BASE, file="some.jsonl"):
    return gather({file: list(findings)}, base)


def cells(table, row=None):
    """The cells of a table by row and column, or those of one row."""
    found = {line[0]: dict(zip(table.head, line, strict=True)) for line in table.rows}
    return found if row is None else found[row]


FOUND = [
    *seeds("table4a/encode_only", 60.0, 61.0, 63.0),
    *seeds("table4a/divide_combine_encode", 64.0, 65.0, 66.0),
    *seeds("table4a/sample_encode_combine", 62.0, 62.1, 62.2),
    *seeds("table4a/fast_moco", 70.0),
]


# A table of the paper


def test_rows_have_the_papers_number_and_the_mean_and_deviation_here():
    table = paper_table(evidence(*FOUND), "table4a")
    row = cells(table, "encode_only")
    assert (row["samples"], row["paper, ImageNet"], row["seeds"]) == ("4", "68.9", "3")
    assert row["here, kNN"] == f"{np.mean([60, 61, 63]):.1f} ± {np.std([60, 61, 63], ddof=1):.1f}"
    assert row["here, cached linear"] == f"{np.mean([65, 66, 68]):.1f} ± {np.std([65, 66, 68], ddof=1):.1f}"
    assert list(cells(table)) == [
        *("encode_only", "sample_combine_encode", "divide_combine_encode"),
        *("montage_encode_divide_combine", "sample_encode_combine", "fast_moco"),
    ]
    assert table.title == "table4a on imagenette, as in pocket/imagenette, 100 epochs"


def test_one_seed_has_no_spread_and_a_row_without_findings_was_not_run():
    table = paper_table(evidence(*FOUND), "table4a")
    assert cells(table, "fast_moco")["here, kNN"] == "70.0"
    row = cells(table, "sample_combine_encode")
    assert (row["paper, ImageNet"], row["here, kNN"], row["here, cached linear"]) == ("71.2", "not run", "not run")
    assert (row["seeds"], row["order, paper"], row["order, here"]) == ("", "", "")


def test_orders_and_pairs_are_of_the_rows_that_were_run():
    table = paper_table(evidence(*FOUND), "table4a")
    orders = {row: (line["order, paper"], line["order, here"]) for row, line in cells(table).items()}
    assert orders["fast_moco"] == ("1", "1")
    assert orders["sample_encode_combine"] == ("2", "3")
    assert orders["divide_combine_encode"] == ("3", "2")
    assert orders["encode_only"] == ("4", "4")
    assert table.notes[1] == (
        "5 of 6 pairs of rows stand in the paper's order; of the 2 whose means here differ by more than the larger "
        "of their standard deviations, 1 does. Of the pairs, 3 have a row of one seed or two, too few to tell."
    )


def test_a_row_that_is_judged_by_another_task_is_not_told_by_this_one():
    for name in ("table2", "table3"):  # whose rows are Fast-MoCo, as those of other tables are
        assert not paper_table(evidence(*FOUND), name).rows


def test_findings_of_another_base_and_of_no_row_are_ignored():
    other = seeds("table4a/encode_only", 1.0, 2.0, base="pocket/cifar10")
    changed = finding("table4a/encode_only", seed=7, top1=3.0, results={"online": {"knn20/top1": 3.0}})
    changed = type(changed)(**{**vars(changed), "recipe": seeds("table7/byol", 0.0)[0].recipe})
    assert paper_table(evidence(*FOUND, *other, changed), "table4a") == paper_table(evidence(*FOUND), "table4a")


def test_a_row_is_found_by_its_recipe_whatever_it_was_asked_by():
    table = paper_table(evidence(*seeds("table4b/fast_moco", 70.0)), "figure3b")
    assert cells(table, "m2_n2")["here, kNN"] == "70.0"
    assert [row for row, line in cells(table).items() if line["here, kNN"] != "not run"] == ["m2_n2"]


def test_the_epochs_of_a_table_are_those_of_most_rows_unless_asked_for():
    long = [*seeds("table4a/fast_moco", *range(70, 79), epochs=800), *seeds("table4a/encode_only", 80.0, epochs=800)]
    known = evidence(*FOUND, *long)
    assert paper_table(known, "table4a") == paper_table(evidence(*FOUND), "table4a")
    table = paper_table(known, "table4a", 800)
    assert cells(table, "fast_moco")["here, kNN"] == "74.0 ± 2.7"
    assert cells(table, "divide_combine_encode")["here, kNN"] == "not run"
    assert table.notes[0].startswith("800 epochs")
    assert not paper_table(known, "table4a", 50).rows


def test_linear_is_the_full_protocol_only_where_every_run_has_it():
    full = {"online": {"knn20/top1": 50.0, "cached/top1": 60.0, "linear/top1": 61.0}}
    one, other = finding("table4b/mocov3", results=full), finding("table4b/fast_moco", results=full)
    table = paper_table(evidence(one, other), "table4b")
    assert cells(table, "mocov3")["here, linear"] == "61.0"
    table = paper_table(evidence(one, other, *seeds("table4b/mocov3_multicrop", 50.0)), "table4b")
    assert cells(table, "mocov3")["here, cached linear"] == "60.0"
    assert "here, linear" not in table.head


def test_where_only_knn_was_asked_for_it_decides_the_order():
    knn = [{"online": {"knn20/top1": top1}} for top1 in (40.0, 30.0)]
    table = paper_table(
        evidence(finding("table4b/mocov3", results=knn[0]), finding("table4b/fast_moco", results=knn[1])), "table4b"
    )
    assert table.head == ("row", "paper, ImageNet", "here, kNN", "seeds", "order, paper", "order, here")
    assert cells(table, "fast_moco")["order, here"] == "2"
    assert table.notes[1].startswith("0 of 1 pairs")


def test_a_number_that_some_seeds_lack_says_so():
    bare = finding("table4a/fast_moco", seed=1, results={"online": {"knn20/top1": 72.0}})
    row = cells(paper_table(evidence(*FOUND, bare), "table4a"), "fast_moco")
    assert (row["seeds"], row["here, kNN"], row["here, cached linear"]) == ("2", "71.0 ± 1.4", "75.0 (n = 1)")


def test_rows_that_are_one_recipe_here_are_told_once():
    table = paper_table(evidence(*seeds("table8/b512", 70.0, 71.0)), "table8")
    assert cells(table, "b1024")["here, kNN"] == "70.5 ± 0.7"
    assert cells(table, "b256")["here, kNN"] == cells(table, "b512")["here, kNN"] == "as b1024"
    assert len(table.notes) == 2  # no pairs to compare


def test_rows_that_cannot_be_in_the_setting_are_named():
    table = paper_table(evidence(*seeds("text/max", 60.0), *seeds("text/samples_2", 70.0)), "text")
    assert "Not in this setting: adamw, mocov3_adamw." in table.notes
    assert "adamw" not in cells(table)


def test_figures_have_no_number_in_the_paper_and_no_order():
    table = paper_table(evidence(*seeds("figure4a/gamma_050", 60.0), *seeds("figure4a/gamma_099", 61.0)), "figure4a")
    assert table.head == ("row", "here, cached linear", "here, kNN", "seeds")


def test_a_table_of_a_users_own_file(tmp_path):
    file = tmp_path / "my.py"
    file.write_text("from fastmoco import methods\nmine = methods.byol\n")
    table = paper_table(evidence(*seeds("table7/byol", 55.0)), str(file))
    assert cells(table, "mine")["here, kNN"] == "55.0"


# Where numbers come from


def test_the_origin_names_files_cards_versions_commits_and_seeds():
    files = {
        "one.jsonl": [finding("table4b/mocov3", seed=2, jobs=3)],
        "two.jsonl": [finding("table4b/mocov3", circumstances={"hardware": "H", "torch": "3", "commit": "def"})],
        "none.jsonl": seeds("table7/byol", 1.0),
    }
    assert paper_table(gather(files, BASE), "table4b").notes[-1] == (
        "`one.jsonl`, `two.jsonl`: an invented card, H, torch 2.11, 3, commit abc1234, def, seeds 0, 2. "
        "Up to 3 trainings shared the device."
    )


def test_of_a_training_that_is_told_twice_the_last_counts():
    table = paper_table(evidence(*FOUND, finding("table4a/fast_moco", top1=75.0)), "table4a")
    assert cells(table, "fast_moco")["here, kNN"] == "75.0"


def test_of_files_that_tell_of_a_training_twice_the_last_counts():
    old, new, other = finding("table4a/fast_moco", top1=70.0), finding("table4a/fast_moco", top1=75.0), FOUND[0]
    found = gather({"old.jsonl": [old], "other.jsonl": [other], "new.jsonl": [new]}, BASE)
    assert (found.findings, found.files) == ((other, new), ("other.jsonl", "new.jsonl"))


def test_two_sets_in_one_setting_are_refused():
    other = finding("table4a/fast_moco", seed=1, data="stl10", names="others")
    with pytest.raises(ValueError, match="imagenette of 1,000 images and stl10 of 1,000 images; choose one by --data"):
        evidence(*FOUND, other)
    with pytest.raises(ValueError, match="give the records of one set only"):
        evidence(*FOUND, replace(other, data=FOUND[0].data))


def test_one_of_two_sets_is_chosen_by_its_name(here, capsys):
    others = [replace(each, data="stl10", names="others", results={"online": {"knn20/top1": 12.5}}) for each in FOUND]
    file = write(here / "some.jsonl", *FOUND, *others)
    report((file,), data="stl10", table=("table4b",))
    assert "12.5" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"^--data: unknown set 'stl'; the nearest known: stl10"):
        report((file,), data="stl")


# MoCo v3 beside Fast-MoCo


def test_the_difference_is_taken_seed_by_seed():
    old, new = [50.0, 60.0, 55.0], [53.0, 64.0, 60.0]
    alone = finding("table4b/mocov3", seed=9, top1=0.0)
    table = headline(evidence(*seeds("table4b/mocov3", *old), alone, *seeds("table4b/fast_moco", *new)))
    apart = np.subtract(new, old)
    assert cells(table, "MoCo v3")["kNN"] == f"{np.mean(old):.1f} ± {np.std(old, ddof=1):.1f}"
    assert cells(table, "difference")["kNN"] == f"+{apart.mean():.1f} ± {apart.std(ddof=1):.1f}"
    assert cells(table, "difference")["paper, ImageNet"] == "+3.2"
    assert cells(table, "Fast-MoCo")["seconds"] == "200.0 ± 0.0"
    assert {line["seeds"] for line in cells(table).values()} == {"3"}


def test_long_trainings_are_told_in_minutes():
    both = [*seeds("table4b/mocov3", 1.0, seconds=900.0), *seeds("table4b/fast_moco", 1.0, seconds=960.0)]
    assert cells(headline(evidence(*both)), "difference")["minutes"] == "+1.0"


def test_without_a_seed_in_common_there_is_no_headline():
    table = headline(evidence(finding("table4b/mocov3", seed=0), finding("table4b/fast_moco", seed=1)))
    assert not table.rows


def test_encoders_are_told_apart():
    results = {
        "online": {"knn20/top1": 50.0, "cached/top1": 60.0},
        "target, recalibrated": {"knn20/top1": 51.0, "cached/top1": 61.0},
    }
    known = evidence(finding("table4b/mocov3", results=results), *seeds("table4b/fast_moco", 1.0))
    assert [line[0] for line in encoders(known).rows] == [
        "MoCo v3, online",
        "MoCo v3, target, recalibrated",
        "Fast-MoCo, online",
    ]
    assert cells(encoders(known), "MoCo v3, target, recalibrated")["cached linear"] == "61.0"
    assert not encoders(evidence(*FOUND)).rows


def test_an_encoder_is_compared_with_the_online_one_of_the_same_trainings():
    online = [{"knn20/top1": knn, "cached/top1": 60.0} for knn in (50.0, 52.0, 70.0)]
    target = [{"knn20/top1": knn, "cached/top1": 60.5} for knn in (51.0, 54.0)]
    held = [{"online": one, "target": other} for one, other in zip(online, target, strict=False)]
    held.append({"online": online[2]})
    known = evidence(*(finding("table4b/mocov3", seed, results=each) for seed, each in enumerate(held)))
    assert encoders(known).rows == (
        ("MoCo v3, online", "60.0 ± 0.0", "", "57.3 ± 11.0", "", "3"),
        ("MoCo v3, target", "60.5 ± 0.0", "+0.5 ± 0.0", "52.5 ± 2.1", "+1.5 ± 0.7", "2"),
    )


def test_long_trainings_have_a_table_of_their_own():
    long = finding("table4b/fast_moco", base="pocket/imagenette_long", results={"online": {}, "target": {}})
    made = tables({"some.jsonl": [long, finding("table4b/fast_moco")]})
    assert [line[0] for line in made["long"]().rows] == ["Fast-MoCo, online", "Fast-MoCo, target"]
    assert [line[-1] for line in made["settings"]().rows] == ["1", "none yet", "none yet", "1"]
    assert not tables({"some.jsonl": [long]}, epochs=100)["long"]().rows


def test_trainings_that_were_not_judged_have_no_tables():
    found = evidence(*(finding(f"table4b/{row}", results={"online": {}}) for row in ("mocov3", "fast_moco")))
    for table in (headline(found), lengths(found), paper_table(found, "table4b")):
        assert not table.rows


def test_nothing_is_drawn_if_a_document_cannot_be_filled(here):
    file = write(here / "some.jsonl", *FOUND)
    with pytest.raises(ValueError, match=r"absent.md: No such file"):
        report((file,), figures="figures", fill=("absent.md",))
    assert not (here / "figures").exists()


def test_on_a_terminal_words_stand_on_the_left_too(here, capsys):
    report((write(here / "some.jsonl", *FOUND),), table=("settings",))
    assert "images  encoder            px" in capsys.readouterr().out


def test_a_summary_has_a_line_for_each_set_and_measure():
    here = evidence(*seeds("table4b/mocov3", 50.0), *seeds("table4b/fast_moco", 54.0))
    other = [finding(f"table4b/{row}", top1=40.0, base="pocket/cifar10") for row in ("mocov3", "fast_moco")]
    table = summary([here, evidence(*other, base="pocket/cifar10"), evidence(base="pocket/shapes")])
    assert [line[0] for line in table.rows] == [
        "imagenette, 100 epochs, cached linear",
        "imagenette, 100 epochs, kNN",
        "cifar10, 200 epochs, cached linear",
        "cifar10, 200 epochs, kNN",
    ]
    assert table.rows[1] == ("imagenette, 100 epochs, kNN", "50.0", "54.0", "+4.0", "1")


# More epochs


def by_epochs(row, **top1):
    return [finding(row, top1=value, epochs=int(epochs.removeprefix("e"))) for epochs, value in top1.items()]


FAST = by_epochs("table4b/fast_moco", e100=64.0)


def test_methods_and_epochs_are_rows():
    table = lengths(evidence(*FAST, *by_epochs("table4b/mocov3", e100=60.0, e200=62.0)))
    assert table.head == ("", "cached linear", "kNN", "minutes", "seeds")
    assert table.rows == (
        ("MoCo v3, 100 epochs", "65.0", "60.0", "3.3", "1"),
        ("MoCo v3, 200 epochs", "67.0", "62.0", "6.7", "1"),
        ("Fast-MoCo, 100 epochs", "69.0", "64.0", "3.3", "1"),
    )


def test_when_the_old_method_is_where_the_new_one_was():
    table = lengths(evidence(*FAST, *by_epochs("table4b/mocov3", e100=60.0, e200=62.0, e800=66.0)))
    # Half of the way from 200 to 800 epochs by factors is 400. Times go with epochs: 2 s each.
    assert table.notes[2] == (
        "By kNN, Fast-MoCo has 64.0 after 100 epochs; MoCo v3 has it after about 400 (between runs that ended), 4.0 "
        "times as many, and 13.3 minutes instead of 3.3, 4.0 times as long."
    )
    table = lengths(evidence(*FAST, *by_epochs("table4b/mocov3", e100=60.0, e800=63.9)))
    assert table.notes[2].endswith("not have it within 800: its best is 63.9, 0.1 below, after 800 with one seed.")
    assert table.notes[3] == "Of MoCo v3, one seed stands behind each of: 100, 800 epochs."
    table = lengths(evidence(*FAST, *by_epochs("table4b/mocov3", e100=64.0, e800=63.9)))
    assert table.notes[2].endswith("MoCo v3 has it after 100 already, its shortest run.")


def test_when_is_also_told_by_single_seeds():
    fast = seeds("table4b/fast_moco", 62.0, 66.0)
    said = lengths(evidence(*fast, *by_epochs("table4b/mocov3", e100=60.0, e200=62.0, e800=66.0))).notes[2]
    assert "after about 400 (200 to 800 by single seeds of Fast-MoCo; between runs that ended), 4.0 times" in said


def test_times_of_trainings_that_shared_a_device_are_not_compared():
    shared = [
        finding("table4b/mocov3", top1=top1, epochs=epochs, jobs=4) for epochs, top1 in ((100, 60.0), (400, 68.0))
    ]
    said = lengths(evidence(*FAST, *shared)).notes[2]
    assert said.endswith("2.0 times as many (times are not compared: trainings shared the device).")


def test_a_training_that_shared_a_device_would_have_gone_at_the_rate_of_one_that_did_not():
    slow = {"seconds": 9e9, "jobs": 4}  # which says nothing
    shared = [
        finding("table4b/mocov3", top1=60.0, epochs=100, **slow),
        finding("table4b/mocov3", top1=68.0, epochs=400, **slow),
        finding("table4b/mocov3", top1=62.0, epochs=200, images_per_second=250.0),
    ]
    table = lengths(evidence(*FAST, *shared))
    # 1,000 images an epoch at 250 a second, whatever the time until the first step was.
    assert [line[3] for line in table.rows] == ["6.7", "13.3", "26.7", "3.3"]
    assert table.notes[-2].endswith(
        "to themselves: 250 images a second for MoCo v3 (1 training), 500 images a second for Fast-MoCo (1 training). "
        "Until its first step such a training takes 9 seconds more."
    )
    table = lengths(evidence(*FAST, *shared, finding("table4b/mocov3", 1, epochs=200, first_step=12.0)))
    assert "for MoCo v3 (2 trainings)" in table.notes[-2]
    assert table.notes[-2].endswith("Until its first step such a training takes 9 to 12 seconds more.")
    assert "times as long" in table.notes[2]


MEANS = {"hardware": "a card", "cores": 16, "threads": 8, "precision": "bf16", "compiled": True, "recorded": True}
OTHERS = [
    *({**MEANS, "hardware": "x86_64"}, {**MEANS, "precision": "float32"}, {**MEANS, "compiled": False}, {}),
    *({**MEANS, "threads": 1}, {**MEANS, "cores": 2}, {**MEANS, "recorded": False}, {**MEANS, "loader": "stream"}),
]


@pytest.mark.parametrize("other", OTHERS)
def test_times_by_other_means_are_not_compared(other):
    fast = finding("table4b/fast_moco", top1=64.0, circumstances=MEANS, images_per_second=20_000.0)
    slow = [
        finding("table4b/mocov3", top1=top1, epochs=epochs, circumstances=other)
        for epochs, top1 in ((100, 60.0), (400, 68.0))
    ]
    table = lengths(evidence(fast, *slow))
    why = "trainings differ in hardware, threads, precision, loader or how steps are computed"
    assert table.notes[2].endswith(f"2.0 times as many (times are not compared: {why}).")
    assert f"Minutes are not told: {why}." in table.notes
    assert [line[3] for line in table.rows] == ["", "", ""]
    assert {"seconds", "images/s"}.isdisjoint(headline(evidence(fast, *slow), 100).head)
    alike = [replace(each, circumstances={**other, "torch": str(n)}) for n, each in enumerate((fast, *slow))]
    assert "times as long" in lengths(evidence(*alike)).notes[2]
    assert {"seconds", "images/s"} < {*headline(evidence(*alike), 100).head}


@pytest.mark.parametrize("other", [other for other in OTHERS if other.get("threads") != 1])
def test_a_training_that_shared_a_device_borrows_no_rate_by_other_means(other):
    alone = finding("table4b/mocov3", epochs=200, circumstances=MEANS)
    shared = [finding("table4b/mocov3", epochs=400, jobs=4, circumstances=each) for each in (MEANS, other)]
    assert [line[3] for line in lengths(evidence(alone, shared[0])).rows] == ["6.7", "13.3"]
    assert [line[3] for line in lengths(evidence(alone, shared[1])).rows] == ["6.7", ""]
    fewer = finding("table4b/mocov3", epochs=400, jobs=4, circumstances={**MEANS, "threads": 2})  # its part of them
    assert [line[3] for line in lengths(evidence(alone, fewer)).rows] == ["6.7", "13.3"]


def test_compilation_is_no_part_of_the_minutes_that_are_compared():
    slow = [
        finding("table4b/mocov3", top1=top1, epochs=epochs, seconds=2.0 * epochs + 200)
        for epochs, top1 in ((100, 60.0), (400, 68.0))
    ]
    fast = finding("table4b/fast_moco", top1=68.0, seconds=2.0 * 100 + 200)
    said = lengths(evidence(fast, *slow)).notes[2]
    assert said.endswith("4.0 times as many, and 13.3 minutes instead of 3.3, 4.0 times as long.")


def test_a_headline_is_of_the_epochs_of_the_base_whatever_else_there_is():
    rows = ("table4b/mocov3", "table4b/fast_moco")
    long = [finding(row, seed, epochs=800) for row in rows for seed in range(4)]
    assert headline(evidence(*long)).title.endswith("800 epochs")
    assert headline(evidence(*long, *(finding(row) for row in rows))).title.endswith("100 epochs")
    assert summary([evidence(*long, *(finding(row) for row in rows))]).rows[0][0].startswith("imagenette, 100 epochs")


@pytest.mark.parametrize("epochs", [1, 5, 12, 50, 800])
def test_a_training_of_any_length_is_in_the_setting_with_its_warm_up_and_no_other(epochs):
    short = compose("table4b/mocov3", (), epochs, None, "", None, BASE)
    assert len(evidence(finding("table4b/mocov3", recipe=short)).row("table4b/mocov3", epochs)) == 1
    for other in ("schedule.warmup=0.1", "schedule.predictor=scheduled", "schedule.start=0.1"):
        changed = finding("table4b/mocov3", recipe=compose("table4b/mocov3", (other,), epochs, None, "", None, BASE))
        assert not evidence(changed).findings
        told = compose(BASE, (other,), None, None, "", None)  # a report that is told the same
        assert len(gather({"some.jsonl": [changed]}, BASE, told).findings) == 1
    if epochs >= 10:
        kept = compose("table4b/mocov3", ("schedule.warmup=10",), epochs, None, "", None, BASE)
        told = compose(BASE, ("schedule.warmup=10",), None, None, "", None)
        assert len(gather({"some.jsonl": [finding("table4b/mocov3", recipe=kept)]}, BASE, told).findings) == 1


def test_seeds_of_a_row_have_one_warm_up():
    row, flags = "table4b/mocov3", ("schedule.warmup=10",)
    full = seeds(row, 10.0, 12.0, 14.0, recipe=compose(row, flags, 10, None, "", None, BASE))
    short = seeds(row, 20.0, 22.0, recipe=compose(row, (), 10, None, "", None, BASE))
    for told in ([*full, *short], [*short, *full], [full[2], *short, full[0]]):
        assert evidence(*told).row(row, 10) == short, "that of a sweep today, whichever was told last"
        assert cells(lengths(evidence(*told)), "MoCo v3, 10 epochs")["seeds"] == "2"
    assert evidence(*full).row(row, 10) == full


def test_what_a_short_training_changes_of_itself_is_not_asked_for(here):
    short = compose("table4b/mocov3", (), 20, 64, "", None, BASE)
    file = write(here / "some.jsonl", finding("table4b/mocov3", recipe=short))
    with pytest.raises(ValueError, match=r"but 1 with optim\.lr=0\.1 batch=64: say the same by --batch and --set"):
        report((file,))


@pytest.mark.parametrize("settings", [(), ("batch=64", "optim.lr=0.1")])
def test_a_row_with_a_support_set_is_found_again_in_another_batch(settings):
    batch = None if settings else 128
    recipe = compose("table7/nnclr", settings, None, batch, "", None, BASE)
    setting = compose(BASE, settings, None, batch, "", None)
    assert recipe.support == 16 * recipe.batch != 16 * find(BASE).recipe.batch
    found = gather({"some.jsonl": [finding("table7/nnclr", recipe=recipe)]}, BASE, setting)
    assert len(found.row("table7/nnclr", recipe.epochs)) == 1


def test_times_stand_beside_numbers_only_where_no_device_was_shared():
    both = [finding("table4b/mocov3"), finding("table4b/fast_moco", jobs=2)]
    assert {"seconds", "images/s"}.isdisjoint(headline(evidence(*both)).head)
    assert {"seconds", "images/s"} < {*headline(evidence(*both[:1], finding("table4b/fast_moco"))).head}


def test_how_long_trainings_took_that_shared_a_device_is_told_below_the_table():
    both = [finding("table4b/mocov3", jobs=3, seconds=660.0), finding("table4b/fast_moco", jobs=2, seconds=840.0)]
    said = "Beside others on the device a training took 11 to 14 minutes: no measure of speed."
    assert said in headline(evidence(*both)).notes
    alone = [replace(each, jobs=1) for each in both]
    assert not any("Beside others" in note for note in headline(evidence(*alone)).notes)


def test_one_length_alone_tells_nothing_of_when_another_method_gets_there():
    one = [*seeds("table4b/mocov3", 50.0), *seeds("table4b/fast_moco", 53.0)]
    assert not any("does not have it" in note for note in lengths(evidence(*one)).notes)
    long = [*by_epochs("table4b/mocov3", e800=50.0), *seeds("table4b/fast_moco", 53.0)]
    assert any("does not have it within 800" in note for note in lengths(evidence(*long)).notes)


def test_a_number_is_reached_between_two_runs_by_factors():
    assert reach([(100, 1.0), (200, 3.0), (800, 2.0)], 2.0) == pytest.approx(100 * 2**0.5)
    assert reach([(100, 1.0), (200, 0.5), (800, 2.5)], 2.5) == pytest.approx(800)
    assert reach([(100, 1.0)], 0.5) == 100
    assert reach([(100, 1.0), (200, 3.0)], 3.1) is None
    assert reach([], 1.0) is None


def test_a_number_that_a_run_has_exactly_is_not_reached_after_its_end():
    for before, after in ((20, 100), (100, 200), (200, 400), (400, 800)):
        for goal, epochs in ((80.0, after), (1e-15, before)):
            needed = reach([(before, 0.0), (after, 80.0)], goal)
            assert before <= needed <= after
            assert needed == pytest.approx(epochs)
    table = lengths(evidence(*FAST, *by_epochs("table4b/mocov3", e20=54.0, e100=64.0)))
    assert table.notes[2].endswith("1.0 times as many, and 3.3 minutes instead of 3.3, 1.0 times as long.")


# All trainings


def test_all_trainings_are_ranked_set_by_set_and_say_what_is_changed():
    slow, cool = (finding("table4b/mocov3", top1=top1) for top1 in (70.0, 80.0))
    slow = replace(slow, recipe=replace(slow.recipe, optim=replace(slow.recipe.optim, lr=0.1)))
    contrast, schedule = replace(cool.recipe.contrast, tau=0.5), replace(cool.recipe.schedule, warmup=3.0)
    cool = replace(cool, recipe=replace(cool.recipe, contrast=contrast, schedule=schedule, epochs=7))
    own = finding("table7/byol", top1=99.0, base="pocket/shapes")
    own = replace(own, row="pocket/shapes", base="", recipe=find("pocket/shapes").recipe)
    table = everything([slow, own, *seeds("table4b/mocov3", 74.0, 76.0), cool])
    assert table.head == ("row and changes", "set", "images", "epochs", "cached linear", "kNN", "seeds")
    within = "table4b/mocov3 in pocket/imagenette"
    assert table.rows == (
        (f"{within}, contrast.tau=0.5, schedule.warmup=3.0", "imagenette", "1,000", "7", "85.0", "80.0", "1"),
        (within, "imagenette", "1,000", "100", "80.0 ± 1.4", "75.0 ± 1.4", "2"),
        (f"{within}, optim.lr=0.1", "imagenette", "1,000", "100", "75.0", "70.0", "1"),
        ("pocket/shapes", "shapes", "1,000", "20", "104.0", "99.0", "1"),
    )
    assert table.notes[1].startswith("Changes are from the row")
    assert [line[3] for line in everything([slow, own, cool], epochs=7).rows] == ["7"]


def test_a_warm_up_that_goes_with_few_epochs_is_no_change():
    short = compose("table4b/mocov3", ("contrast.tau=0.5",), 9, None, "", None, BASE)
    assert short.schedule != find(BASE).recipe.schedule
    (line,) = everything([finding("table4b/mocov3", recipe=short)]).rows
    assert line[0] == "table4b/mocov3 in pocket/imagenette, contrast.tau=0.5"


def test_a_linear_number_decides_the_order_as_in_other_tables_and_one_without_it_is_last():
    results = ({"cached/top1": 60.0, "knn20/top1": 90.0}, {"cached/top1": 70.0}, {"knn20/top1": 99.0})
    found = [finding("table4b/mocov3", epochs=n, results={"online": each}) for n, each in enumerate(results, 11)]
    assert [line[3] for line in everything(found).rows] == ["12", "11", "13"]


def test_sets_of_one_name_are_told_apart():
    one, other = finding("table4b/mocov3", top1=50.0), finding("table4b/mocov3", top1=60.0, images=77, names="others")
    best = finding("table4b/mocov3", top1=55.0, epochs=30)
    assert [(line[2], line[5]) for line in everything([one, other, best]).rows] == [
        *(("77", "60.0"), ("1,000", "55.0"), ("1,000", "50.0")),
    ]


def test_a_set_in_two_sizes_is_two_sets_and_one_that_does_not_tell_is_either():
    small, large, quiet = (finding("table4b/mocov3", seed, pixels=each) for seed, each in enumerate(("s", "l", "")))
    assert [line[-1] for line in everything([small, large]).rows] == ["1", "1"]
    assert [line[-1] for line in everything([quiet, large]).rows] == ["2"]
    assert len(evidence(quiet, large).findings) == 2
    with pytest.raises(ValueError, match="imagenette of 1,000 images and imagenette of 1,000 images; give the records"):
        evidence(small, large)


def test_of_a_set_in_two_sizes_one_that_does_not_tell_joins_neither_in_any_order():
    sizes = {"": 50.0, "aaaaaaaa": 60.0, "bbbbbbbb": 70.0}
    told = [finding("table4b/mocov3", top1=top1, pixels=pixels) for pixels, top1 in sizes.items()]
    short = [replace(each, recipe=replace(each.recipe, epochs=30)) for each in told[:2]]
    for order in permutations(told):
        assert [(line[1], line[5]) for line in everything(order).rows] == [
            ("imagenette, pixels aaaaaa", "60.0"),
            ("imagenette, pixels bbbbbb", "70.0"),
            ("imagenette, pixels not told", "50.0"),
        ]
        assert len(everything([*order, *short], epochs=30).rows) == 2  # also where that length is of one size only


def test_two_sizes_of_a_set_are_refused_wherever_one_that_does_not_tell_stands():
    told = [finding("table4b/mocov3", seed, pixels=each) for seed, each in enumerate(("", "s", "l"))]
    for order in permutations(told):
        with pytest.raises(ValueError, match="give the records of one set only"):
            evidence(*order)
    for order in permutations([*told[:2], replace(told[1], seed=3)]):
        assert len(evidence(*order).findings) == 3


def test_a_file_that_a_record_names_is_not_run(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("raise SystemExit('it was run')")
    first = replace(finding("table4b/mocov3"), row=f"{path}:own", base="")
    again = replace(first, results={"online": {"knn20/top1": 1.0, "cached/top1": 2.0}})  # told before it
    other = replace(first, recipe=replace(first.recipe, batch=8), results={"online": {"knn20/top1": 9.0}})
    lines = everything([again, first, other]).rows
    assert lines == (
        (f"{path}:own", "imagenette", "1,000", "100", "55.0", "50.0", "1"),
        (f"{path}:own, batch=8", "imagenette", "1,000", "100", "", "9.0", "1"),
    )


def test_a_row_that_its_base_carries_no_more_is_told_by_its_name():
    once = replace(finding("table4b/mocov3"), row="text/adamw")
    assert everything([once]).rows[0][0] == "text/adamw in pocket/imagenette"


# The command


def write(path, *findings):
    for each in findings:
        add(path, each)
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_are_printed_for_those_that_have_findings(here, capsys):
    write(here / "runs/findings/imagenette.jsonl", *FOUND)
    report()
    said = capsys.readouterr().out
    assert "table4a on imagenette, as in pocket/imagenette, 100 epochs\n\nrow " in said
    assert "sample_combine_encode                4             71.2" in said
    assert "table7" not in said
    assert "`imagenette.jsonl`: an invented card" in said
    report(table=("table4b",))
    assert capsys.readouterr().out.startswith("table4b on")


def test_tables_of_other_sets_come_from_their_own_base(here, capsys):
    both = [finding(f"table4b/{row}", base="pocket/cifar10") for row in ("mocov3", "fast_moco")]
    report((write(here / "c.jsonl", *both),), table=("cifar10",))
    assert "MoCo v3 and Fast-MoCo on cifar10, as in pocket/cifar10, 200 epochs" in capsys.readouterr().out
    report((str(here / "c.jsonl"),), recipe_base="pocket/cifar10", table=("headline", "table4b"))
    assert capsys.readouterr().out.count("as in pocket/cifar10, 200 epochs") == 2


def test_all_trainings_are_of_any_setting_and_of_several_sets(here, capsys):
    some, others = finding("table4b/mocov3"), finding("table4b/mocov3", images=77, names="others", epochs=70)
    write(here / "runs/findings/some.jsonl", some, others, finding("table4b/mocov3", base="pocket/photos"))
    with pytest.raises(ValueError, match="give the records of one set only"):
        report(table=("headline",))
    report(table=("all",), recipe_base="pocket/cifar10")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:6]] == ["table4b/mocov3"] * 3
    report(table=("all",), epochs=70)
    assert capsys.readouterr().out.count("table4b/mocov3") == 1


def test_all_trainings_are_printed_if_asked_for_and_fill_their_place(here, capsys):
    write(here / "runs/findings/imagenette.jsonl", *FOUND)
    report()
    assert "all trainings" not in capsys.readouterr().out
    report(table=("all", "settings"))
    said = capsys.readouterr().out
    assert said.startswith("all trainings")
    assert "\nsettings\n" in said
    page = here / "page.md"
    page.write_text("<!-- all --><!-- /all -->")
    report(fill=("page.md",))
    assert "| row and changes |" in page.read_text()


def test_documents_are_filled_and_filled_again_alike(here, capsys):
    write(here / "runs/findings/imagenette.jsonl", *FOUND)
    (here / "docs").mkdir()
    page = here / "docs" / "page.md"
    marks = "<!-- table4a -->x<!-- /table4a -->\n<!-- table7 --><!-- /table7 -->\n<!-- long -->kept<!-- /long -->\n"
    page.write_text(marks + "<!-- speed --> stays\n")
    report(fill=("docs/page.md",))
    first = page.read_text()
    assert "| fast_moco | 12 | 73.5 | 75.0 | 70.0 | 1 | 1 | 1 |" in first
    assert "<!-- table7 -->\n\nNo records yet.\n\n<!-- /table7 -->\n" in first
    assert first.endswith("<!-- long -->kept<!-- /long -->\n<!-- speed --> stays\n"), "for want of findings"
    report(fill=("docs/page.md",))
    assert page.read_text() == first
    assert capsys.readouterr().out == "filled: docs/page.md\nas it was: docs/page.md\n"


def test_a_figure_is_shown_where_there_is_one(here, capsys):
    write(here / "runs/findings/imagenette.jsonl", *seeds("table4b/fast_moco", 60.0), *seeds("figure3b/m2_n1", 50.0))
    (here / "docs").mkdir()
    page = here / "docs" / "page.md"
    marks = "<!-- figure epochs --><!-- /figure epochs -->\n<!-- figure ablations --><!-- /figure ablations -->\n"
    page.write_text(marks)
    (here / "docs" / "table.md").write_text("<!-- headline --><!-- /headline -->")
    report(fill=("docs/page.md", "docs/table.md"))
    assert page.read_text() == marks, "what was not drawn now may have been drawn before"
    report(figures="docs/results", fill=("docs/page.md",))
    assert "](results/epochs.png)" in page.read_text()
    assert "](results/ablations.png)" in page.read_text()
    assert "drawn: docs/results/epochs.png\n" in capsys.readouterr().out


def test_figures_and_tables_are_those_that_are_asked_for(here, capsys):
    found = [*seeds("table4b/fast_moco", 60.0), *seeds("figure3b/m2_n1", 50.0)]
    write(here / "runs/findings/imagenette.jsonl", *found)
    report(table=("figure3b",), figures="one")
    assert "drawn: one/ablations.png" in (out := capsys.readouterr().out)
    assert "m2_n1" in out
    report(table=("all",), figures="both")
    assert len(list((here / "both").iterdir())) == 2
    with pytest.raises(ValueError, match=r"--figures: no figure shows table4b; ask for epochs, figure3a, .*, or leave"):
        report(table=("table4b",), figures="none")
    report(table=("epochs",), figures="some")
    assert "drawn: some/epochs.png" in (out := capsys.readouterr().out)
    assert "Fast-MoCo, 100 epochs" in out
    assert [path.name for path in (here / "some").iterdir()] == ["epochs.png"]


def test_a_method_without_trainings_is_not_in_the_legend():
    figure = curves.draw_epochs(evidence(*seeds("table4b/mocov3", 50.0)))
    names = {text.get_text().partition(",")[0] for text in figure.legends[0].get_texts()}
    assert names == {"MoCo v3", "kNN on the way"}


def test_the_base_is_the_one_of_most_trainings_unless_there_are_some_of_imagenette(here, capsys):
    base = find("pocket/shapes").recipe
    shapes = [
        finding(row, base="pocket/shapes", data="shapes", recipe=carry(find(row).recipe, base))
        for row in ("table4b/mocov3", "table4b/fast_moco")
    ]
    file = write(here / "shapes.jsonl", *shapes)
    report((file,))
    out = capsys.readouterr().out
    assert "epochs on shapes, as in pocket/shapes" in out
    assert out.count("MoCo v3 and Fast-MoCo on shapes") == 1
    report((file, write(here / "more.jsonl", finding("table4b/mocov3"))))
    out = capsys.readouterr().out
    assert "epochs on imagenette, as in pocket/imagenette" in out
    assert "epochs on shapes" not in out
    (here / "mine.py").write_text("raise SystemExit('run')")
    mine = [replace(each, base="mine.py:tiny", recipe=replace(each.recipe, batch=64)) for each in shapes]
    with pytest.raises(ValueError, match=r"no findings in the setting of pocket/imagenette, but 2 of mine\.py:tiny"):
        report((write(here / "mine.jsonl", *mine),))


def test_mistakes_are_one_line(here):
    write(here / "some.jsonl", *FOUND)
    with pytest.raises(ValueError, match=r"^no records 'other\.jsonl'; give files"):
        report(("other.jsonl",))
    (here / "bad.jsonl").write_text("\n" + json.dumps({"recipe": "Recipe"}) + "\n")
    with pytest.raises(ValueError, match=r"^bad\.jsonl, line 2 is no finding"):
        report(("bad.jsonl",))
    with pytest.raises(ValueError, match=r"^unknown table 'tabel4a'; the nearest known: table4a"):
        report(("some.jsonl",), table=("tabel4a",))
    with pytest.raises(ValueError, match=r"^--recipe-base: unknown row 'pocket/imagenet'"):
        report(("some.jsonl",), recipe_base="pocket/imagenet")
    with pytest.raises(ValueError, match=r"^no findings in runs/findings; "):
        report()
    nothing = r"^no findings in the setting of pocket/photos, but 10 of pocket/imagenette: .*, or look at --table all$"
    with pytest.raises(ValueError, match=nothing):
        report(("some.jsonl",), recipe_base="pocket/photos")
    shapes = finding(
        "table4b/mocov3",
        base="pocket/shapes",
        data="shapes",
        recipe=carry(find("table4b/mocov3").recipe, find("pocket/shapes").recipe),
    )
    write(here / "two.jsonl", *FOUND, shapes)
    for flags in ({"batch": 64}, {"set": ("optim.lr=3",)}, {"batch": 64, "table": ("table4b",)}):
        with pytest.raises(
            ValueError, match=r"^no findings in that setting of pocket/imagenette, but 10 with the base"
        ):
            report(("two.jsonl",), **flags)
    with pytest.raises(ValueError, match=r"^no findings in the setting of pocket/cifar10, but"):
        report(("two.jsonl",), recipe_base="pocket/cifar10")
    with pytest.raises(ValueError, match=r"^--epochs 7: no training had so many; use 100"):
        report(("some.jsonl",), table=("all",), epochs=7)
    with pytest.raises(ValueError, match=r"^unknown table 'aall'; the nearest known: all"):
        report(("some.jsonl",), table=("aall",))
    with pytest.raises(ValueError, match=r"^--epochs 7: no training had so many; use 100"):
        report(("some.jsonl",), epochs=7)
    (here / "page.md").write_text("nothing\n")
    with pytest.raises(ValueError, match=r"^page\.md has no place for a table: put <!-- settings --> and"):
        report(("some.jsonl",), fill=("page.md",))
    with pytest.raises(ValueError, match=r"^page\.md has no place for a table: put <!-- table7 --> and"):
        report(("some.jsonl",), fill=("page.md",), table=("table7",))
    (here / "good.md").write_text("<!-- table4a --><!-- /table4a -->")
    with pytest.raises(ValueError, match=r"^page\.md has no place"):
        report(("some.jsonl",), fill=("good.md", "page.md"))
    assert (here / "good.md").read_text() == "<!-- table4a --><!-- /table4a -->"


def test_settings_are_those_of_the_bases():
    table = settings([evidence(*FOUND), evidence(base="pocket/shapes")])
    row = cells(table, "`pocket/imagenette`")
    assert (row["images"], row["encoder"], row["px"], row["batch"], row["trainings"]) == (
        *("1,000", "resnet18", "128", "256"),
        str(len(FOUND)),
    )
    assert cells(table, "`pocket/shapes`")["trainings"] == "none yet"


def test_only_what_is_asked_for_is_made():
    assert list(tables({}, only=("headline", "figure5"))) == ["headline", "figure5"]
    assert {"settings", "results", "table4a", "cifar10", "shapes"} <= set(tables({}))
    assert "cifar10" in tables({}, base="pocket/cifar10")


def test_a_document_is_not_written_by_looking_at_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table4a --><!-- /table4a -->")
    assert "No records yet." in filled(page, tables({}), tmp_path)
    assert page.read_text() == "<!-- table4a --><!-- /table4a -->"


@pytest.mark.parametrize(("most", "rare"), [(b"\n", b"\r\n"), (b"\r\n", b"\n")])
def test_lines_around_a_table_keep_their_ends_and_its_own_are_those_of_most(here, most, rare):
    write(here / "runs/findings/imagenette.jsonl", *FOUND)
    page = here / "page.md"
    before, after = b"one" + most + b"two" + rare + b"three" + most, most + b"odd\r\r\nend" + rare
    page.write_bytes(before + b"<!-- table4a -->" + most + b"old" + most + b"<!-- /table4a -->" + after)
    for _ in range(2):
        report(fill=("page.md",))
        text = page.read_bytes()
        assert text.startswith(before + b"<!-- table4a -->" + 2 * most + b"|")
        assert text.endswith(b"<!-- /table4a -->" + after)
        made = text[len(before) : -len(after)]
        assert made.count(b"\r\n") == (made.count(b"\n") if most == b"\r\n" else 0)


def test_a_document_keeps_the_ends_of_its_lines(here):
    write(here / "runs/findings/imagenette.jsonl", *FOUND)
    (here / "page.md").write_bytes(b"a\r\n<!-- headline --><!-- /headline -->\r\nb\r\n")
    report(fill=("page.md",))
    text = (here / "page.md").read_bytes()
    assert text.count(b"\n") == text.count(b"\r\n") > 3


def test_a_sweep_that_changed_its_base_is_reported_by_the_same_flags(here, capsys):
    changed = find(BASE).recipe
    changed = replace(changed, batch=64, optim=replace(changed.optim, lr=changed.optim.lr / 4))
    both = [finding(row, recipe=carry(find(row).recipe, changed)) for row in ("table4b/mocov3", "table4b/fast_moco")]
    file = write(here / "some.jsonl", *both)
    with pytest.raises(
        ValueError, match=r"that setting of .*, but 2 with optim.lr=0.1 batch=64: say the same by --batch"
    ):
        report((file,))
    plainly = write(
        here / "plain.jsonl", finding("table4b/mocov3"), replace(finding("table4b/fast_moco"), row=BASE, base="")
    )
    with pytest.raises(ValueError, match=r", but 2 with the base as it is: leave out --batch and --set"):
        report((plainly,), batch=64)
    report((file,), batch=64, table=("headline",))
    assert "50.0" in capsys.readouterr().out
    report((file,), set=("batch=64", f"optim.lr={changed.optim.lr}"), table=("headline",))
    assert "50.0" in capsys.readouterr().out


def test_of_rows_in_a_file_no_changes_are_guessed_and_the_file_is_to_be_named(here, capsys):
    (here / "mine.py").write_text("from fastmoco.recipes.table4b import mocov3\n")
    base = "pocket/shapes"
    found = [
        finding("table4b/mocov3", base=base, recipe=compose("table4b/mocov3", (), epochs, 16, "", None, base))
        for epochs in (2, 3)
    ]
    file = write(here / "some.jsonl", *(replace(each, row="mine.py:mocov3") for each in found))
    with pytest.raises(
        ValueError, match=r"that setting of pocket/shapes, but 2 of rows in files: look at --table all, or"
    ):
        report((file,))
    report((file,), recipe_base=base, table=("mine.py",), batch=16)
    assert "mine.py on shapes, as in pocket/shapes, 2 epochs" in capsys.readouterr().out
    report((file,), table=("all",))
    assert capsys.readouterr().out.count("mine.py:mocov3 in pocket/shapes") == 2


TAU_AND_ALPHA = ("contrast.tau=0.3", "target.alpha=0.9")


def test_what_a_sweep_changed_of_views_or_contrast_is_told_as_it_must_be_said(here, capsys):
    flags = ("contrast.tau=0.3", "views.0.size=64", "views.1.size=64")
    both = ("table4b/mocov3", "table4b/fast_moco")
    found = [finding(row, recipe=compose(row, flags, None, None, "", None, BASE)) for row in both]
    file = write(here / "some.jsonl", *found)
    with pytest.raises(ValueError, match="no findings in that setting of pocket/imagenette, but 2 with ") as refused:
        report((file,))
    said = str(refused.value).partition(" with ")[2].partition(": say the same by --batch and --set")[0]
    report((file,), set=said.split(), table=("headline",))
    assert "50.0" in capsys.readouterr().out


def test_findings_that_flags_changed_do_not_hide_those_of_another_base(here, capsys):
    changed = compose("table4b/mocov3", ("encoder=resnet34",), None, None, "", None, BASE)
    others = [finding(f"table4b/{row}", base="pocket/shapes") for row in ("mocov3", "fast_moco")]
    report((write(here / "some.jsonl", finding("table4b/mocov3", recipe=changed), *others),))
    assert "table4b on shapes, as in pocket/shapes" in capsys.readouterr().out


def test_rows_that_compute_the_same_are_told_by_one_training():
    found = evidence(*seeds("table4b/mocov3", 60.0), *seeds("table4b/fast_moco", 70.0), *seeds("text/samples_4", 65.0))
    cells = {row: line[-4] for line in paper_table(found, "text").rows for row in line[:1]}
    assert (cells["samples_6"], cells["samples_4"], cells["samples_2"]) == ("70.0", "65.0", "not run")


def test_of_two_trainings_that_compute_the_same_the_last_is_in_the_list_of_all():
    made = tables({"some.jsonl": [finding("figure3a/input_4", top1=50.0), finding("table4b/mocov3", top1=60.0)]})
    assert [(line[0], line[-2]) for line in made["all"]().rows] == [(f"table4b/mocov3 in {BASE}", "60.0")]


def test_another_tau_or_alpha_is_another_setting():
    changed = [compose("table4b/mocov3", (each,), None, None, "", None, BASE) for each in TAU_AND_ALPHA]
    found = evidence(finding("table7/byol"), *(finding("table4b/mocov3", recipe=each) for each in changed))
    assert [each.row for each in found.findings] == ["table7/byol"]  # which has no tau


def test_of_two_trainings_that_compute_the_same_the_last_counts():
    found = evidence(*seeds("text/samples_6", 50.0), *seeds("table4b/fast_moco", 70.0))
    assert [each.score("knn20/top1") for each in found.row("text/samples_6", 100)] == [70.0]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"fill": ("photo.png",)}, "photo.png is no text; give a Markdown document"),
        ({"fill": ("none.md",)}, "none.md: No such file or directory; give a Markdown document"),
        ({"fill": ("typo.md",)}, "typo.md: unknown table 'tabel4b'; the nearest known: table4b"),
        ({"fill": ("half.md",)}, "half.md: unknown table 'tabel4b'; the nearest known: table4b"),
        ({"figures": "typo.md"}, "--figures typo.md is a file; give a folder"),
    ],
)
def test_a_document_that_cannot_be_filled_is_named(here, flags, line):
    (here / "photo.png").write_bytes(b"\xff\xd8")
    (here / "typo.md").write_text("<!-- tabel4b -->\n<!-- /tabel4b -->\n")
    (here / "half.md").write_text(
        "<!-- speed -->\n<!-- /speed -->\n<!-- table4a -->\n<!-- /table4a -->\n<!-- tabel4b -->\n<!-- /tabel4b -->\n"
    )
    file = write(here / "some.jsonl", *FOUND)
    with pytest.raises(ValueError, match=f"^{re.escape(line)}"):
        report((file,), **flags)


def test_a_full_disk_leaves_documents_as_they_were(here, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    (here / "page.md").write_text("<!-- table4b -->\n<!-- /table4b -->\n")
    file = write(here / "some.jsonl", *FOUND)
    monkeypatch.setattr(os, "fsync", full)
    line = r"^cannot write page\.md: No space left on device; what was there before is intact$"
    with pytest.raises(OSError, match=line):
        report((file,), fill=("page.md",))
    assert (here / "page.md").read_text() == "<!-- table4b -->\n<!-- /table4b -->\n"
    assert sorted(path.name for path in here.iterdir()) == ["page.md", "some.jsonl"]


def test_a_link_to_a_document_stays_one(here):
    (here / "real.md").write_text("<!-- table4b -->\n<!-- /table4b -->\n")
    (here / "link.md").symlink_to("real.md")
    report((write(here / "some.jsonl", *FOUND),), fill=("link.md",))
    assert (here / "link.md").is_symlink()
    assert "| mocov3" in (here / "real.md").read_text()


@pytest.mark.parametrize("shut", ["file", "folder"])
def test_no_document_is_filled_if_one_cannot_be_written(here, monkeypatch, shut):
    def refuse(**where):
        if where["dir"].name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied")
        return io.BytesIO()

    (here / "shut").mkdir()
    for name in ("page.md", "shut/page.md"):
        (here / name).write_text("<!-- table4b -->\n<!-- /table4b -->\n")
    file = write(here / "some.jsonl", *FOUND)
    if shut == "file":  # root may write any
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("shut/page.md"))
        line = r"^shut/page\.md is read-only; make it writable, or give another --fill$"
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
        line = r"^shut cannot be written to: Permission denied; give another --fill$"
    with pytest.raises(ValueError, match=line):
        report((file,), fill=("page.md", "shut/page.md"))
    assert "|" not in (here / "page.md").read_text()


def test_one_seed_is_not_called_a_mean():
    table = headline(evidence(*seeds("table4b/mocov3", 50.0), *seeds("table4b/fast_moco", 53.0)))
    assert table.notes[0] == "100 epochs. Top-1 in percent, of one seed; kNN of 20 neighbours."


def test_seeds_are_told_only_of_what_is_compared():
    assert not any("one seed stands behind" in note for note in lengths(evidence(*seeds("table4b/mocov3", 50.0))).notes)


def test_rows_that_were_not_well_at_the_end_are_told():
    ill, slow = {"verdict": "collapsing: rank 2.6 of 256"}, {"verdict": "loader-bound: 40 % waiting; try"}
    found = evidence(
        *(finding("table7/simsiam", seed=seed, circumstances=ill) for seed in (0, 1)),
        finding("table7/simsiam", seed=2, circumstances={"verdict": "healthy: loss"}),
        finding("table7/byol", circumstances=slow),
        *seeds("table7/nnclr", 50.0),
    )
    assert "Not well at the end of training: simsiam (collapsing)." in paper_table(found, "table7").notes
    assert not any("Not well" in note for note in paper_table(evidence(*FOUND), "table4b").notes)


def test_a_training_that_was_not_well_says_so_beside_its_numbers():
    well, ill = (finding("table4b/mocov3", circumstances={"verdict": each}) for each in ("healthy: x", "diverged: y"))
    assert (scores(well), scores(ill)) == (
        "kNN 50.0 %, cached linear 55.0 %",
        "kNN 50.0 %, cached linear 55.0 %, diverged",
    )
