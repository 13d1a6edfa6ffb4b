"""When a GPU records a step, and the refusals in one line where it cannot."""

from dataclasses import replace

import pytest
import torch

from fastmoco import machine, methods
from fastmoco.machine import records_steps
from fastmoco.recipes import find
from fastmoco.run import Run

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MONTAGE = find("table4a/montage_encode_divide_combine").recipe
TIMM = replace(methods.fast_moco, encoder="timm/test_resnet")


def test_auto_records_wherever_it_can(monkeypatch):
    assert records_steps("auto", methods.fast_moco, GPU, thrifty=False)
    assert records_steps("on", methods.fast_moco, GPU, thrifty=False)
    assert not records_steps("off", methods.fast_moco, GPU, thrifty=False)
    assert not records_steps("auto", methods.fast_moco, CPU, thrifty=False)
    assert not records_steps("auto", methods.fast_moco, GPU, thrifty=True)
    assert not records_steps("auto", MONTAGE, GPU, thrifty=False)
    assert not records_steps("auto", TIMM, GPU, thrifty=False)
    monkeypatch.setattr(machine, "grouped", lambda: True)
    assert not records_steps("auto", methods.fast_moco, GPU, thrifty=False)


@pytest.mark.parametrize(
    ("recipe", "device", "thrifty", "ranks", "reason"),
    [
        (methods.fast_moco, CPU, False, 1, "it needs a GPU, and this is cpu"),
        (methods.fast_moco, GPU, False, 2, "it is for one process"),
        (methods.fast_moco, GPU, True, 1, "--recompute and --micro do not go with it"),
        (MONTAGE, GPU, False, 1, "this recipe draws on the way"),
        (TIMM, GPU, False, 1, "has an encoder of timm"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_a_line_with_the_reason(
    recipe, device, thrifty, ranks, reason, monkeypatch
):
    monkeypatch.setattr(machine, "grouped", lambda: ranks > 1)
    with pytest.raises(ValueError, match=rf"^--graph on: .*{reason}.*; use --graph off$"):
        records_steps("on", recipe, device, thrifty)
    assert not records_steps("off", recipe, device, thrifty)


def test_how_a_run_computes_is_told_in_words_and_geared(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    made = Run(GPU, True, True, "stream", 2, 0, 1, 1, 0, 0, graph=True, recompute=True, micro=4, decode="gpu")
    assert made.words == "a GPU, bfloat16, compiled, recorded"
    gear = made.gear
    assert (gear.device, gear.bf16, gear.compile, gear.graph) == (GPU, True, True, True)
    assert (gear.recompute, gear.micro, gear.channels_last) == (True, 4, True)
