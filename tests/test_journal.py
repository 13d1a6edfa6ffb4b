import json
import time

from fastmoco.journal import Journal, clock, kept


def test_records_after_the_step_of_a_checkpoint_are_taken_back_and_torn_lines_dropped(tmp_path):
    journal = Journal(tmp_path, 0)
    for step in (1, 2, 3):
        journal.record(step, {"train/loss": step / 3})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/lo')
    journal = Journal(tmp_path, 2)
    assert [line["step"] for line in kept(tmp_path / "metrics.jsonl", 9)] == [1, 2]
    assert journal.recorded(2, "train/loss")
    assert not journal.recorded(3, "train/loss")
    journal.record(3, {"train/loss": 0.5, "val/knn_top1": 40.0})
    assert (journal.last("train/loss"), journal.last("val/knn_top1"), journal.last("health/std")) == (0.5, 40.0, None)
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"step": 1, "train/loss": 1 / 3}  # every bit of a number is kept
    assert [line["step"] for line in lines] == [1, 2, 3]


def test_events_are_what_tensorboard_reads(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal = Journal(tmp_path, 0)
    for step in (1, 2, 3, 4):
        journal.record(step, {"train/loss": float(step)})
    journal.close()
    time.sleep(1.1)  # files of one second are read in the order of a number in their names, as text: 10 before 9
    journal = Journal(tmp_path, 2)  # as after a restart from step 2
    journal.record(3, {"train/loss": 30.0})
    journal.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_what_is_said_is_also_in_the_log(tmp_path, capsys):
    journal = Journal(tmp_path, 0)
    journal.say("resumed")
    journal.note("only for later")
    journal.line.show("only for now")
    journal.close()
    log = (tmp_path / "train.log").read_text()
    assert "resumed" in log
    assert "only for later" in log
    assert "only for now" not in log
    assert capsys.readouterr().err == "resumed\nonly for now\n"


def test_spans_of_time_are_written_as_people_do():
    assert [clock(s) for s in (0.0, 9.0, 249.0, 5025.0, 273_900.0)] == ["0:00", "0:09", "4:09", "1:23:45", "3 d 04:05"]
