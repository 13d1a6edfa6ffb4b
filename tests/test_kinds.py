"""What a field of a recipe may hold, and the line that says so."""

import math
from dataclasses import dataclass, field, make_dataclass, replace

import numpy as np
import pytest

from fastmoco.contrast import InfoNCE
from fastmoco.heads import MLP
from fastmoco.kinds import check, fit, hints
from fastmoco.merge import Mean
from fastmoco.methods import fast_moco
from fastmoco.notation import override
from fastmoco.recipe import Recipe, View
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


class Loose:
    """A part that is no dataclass, so that its text would be an address."""

    def __call__(self, samples, target, own):
        return InfoNCE()(samples, target, own)

    def chance(self, batch):
        return 1.0


@dataclass
class Soft(Loose):
    """A part that can change while a training goes on."""

    tau: float = 0.2


@dataclass(frozen=True)
class Firm(Loose):
    """As it should be."""

    tau: float = 0.2


@dataclass(frozen=True)
class Called(Loose):
    """A part with a field that has no text."""

    way: object = max


@dataclass(eq=False)
class Alone(Loose):
    """A part that is like no other, and can change."""


@dataclass(frozen=True)
class Derived(Loose):
    """A part that works something out."""

    tau: float = 0.2
    sharp: float = field(init=False, default=0.0)

    def __post_init__(self):
        object.__setattr__(self, "sharp", 1 / self.tau)


def wrongly(value, **fields):
    """A value with fields that it would refuse where types are checked, as they are here."""
    for name, item in fields.items():
        object.__setattr__(value, name, item)
    return value


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("epochs", 2.5, "expected a whole number, got 2.5"),
        ("epochs", "3", "expected a whole number, got '3'"),
        ("epochs", True, "expected a whole number, got True"),
        ("clip", "x", "expected a number, got 'x'"),
        ("clip", float("nan"), "expected a number, got nan"),
        ("views", list(fast_moco.views), "expected a tuple of View, got .*"),
        ("encoder", 5, "expected a word, got 5"),
        ("contrast", None, "expected InfoNCE or Cosine, got None"),
        ("contrast", InfoNCE, r"expected a value, got the class InfoNCE; write InfoNCE\(\)"),
        ("contrast", Mean(), "expected InfoNCE or Cosine, got Mean, which has no chance"),
        ("contrast", Loose(), r"Loose is no frozen dataclass; write @dataclass\(frozen=True\) above it"),
        ("contrast", Soft(), r"Soft is no frozen dataclass; write @dataclass\(frozen=True\) above it"),
        ("contrast", Alone(), r"Alone is no frozen dataclass; write @dataclass\(frozen=True\) above it"),
        ("contrast", Called(), "way of Called is <built-in function max>; use numbers, words, tuples and such"),
        ("contrast", Called([1]), r"way of Called is \[1\]; use numbers, words, tuples and such"),
        ("contrast", wrongly(InfoNCE(), tau=math.inf), "tau: expected a number, got inf"),
        ("contrast", wrongly(InfoNCE(), tau=np.float64(0.3)), r"tau: expected a number, got np.float64\(0.3\)"),
        ("epochs", np.int64(3), r"expected a whole number, got np.int64\(3\)"),
        ("target", None, "expected Momentum or StopGradient, got None"),
        ("pairs", 5, "expected OtherViews or SameView, got 5"),
        ("optim", None, "expected SGD or AdamW or LARS, got None"),
        ("evaluation", 5, "expected Linear or Semi or Detect, got 5"),
        ("projector", (64, 64), r"expected MLP, got \(64, 64\)"),
    ],
)
def test_a_value_that_a_field_cannot_hold_is_refused_in_a_line(name, value, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        fit(value, hints(Recipe)[name])


def test_what_a_field_can_hold_is_left_as_it_is():
    for name in hints(Recipe):
        assert fit(getattr(fast_moco, name), hints(Recipe)[name]) == getattr(fast_moco, name)
    assert fit(Firm(), hints(Recipe)["contrast"]) == Firm()
    assert fit(Called((1, "a", None, Firm())), hints(Recipe)["contrast"]) == Called((1, "a", None, Firm()))
    assert type(fit(1, float)) is float


def test_a_part_that_works_something_out_can_be_set():
    recipe = replace(fast_moco, contrast=Derived())
    assert override(recipe, ["contrast.tau=0.5"]).contrast.sharp == 2.0
    with pytest.raises(ValueError, match="unknown Derived field 'sharp'"):
        override(recipe, ["contrast.sharp=1.0"])


def test_a_step_on_a_path_is_checked_as_a_whole():
    wrong = Combine(2)
    object.__setattr__(wrong, "merge", Mean)
    path = (Divide(2), Encode(), wrong, Project(), Predict())
    with pytest.raises(ValueError, match=r"^merge: expected a value, got the class Mean; write Mean\(\)$"):
        fit(path, hints(View)["online"])


def test_annotations_that_cannot_be_read_are_one_line():
    kind = make_dataclass("Quoted", [("tau", "Absent")], frozen=True)
    with pytest.raises(ValueError, match=r"^the annotations of Quoted: name 'Absent' is not defined; write them"):
        hints(kind)


def test_a_mistake_deep_inside_is_found_by_its_path():
    head = MLP((64, 64))
    object.__setattr__(head, "widths", (64, 64.0))
    with pytest.raises(ValueError, match=r"^widths: expected a whole number, got 64.0$"):
        check(head)
    recipe = object.__new__(Recipe)
    for name in hints(Recipe):
        object.__setattr__(recipe, name, head if name == "projector" else getattr(fast_moco, name))
    with pytest.raises(ValueError, match=r"^projector: widths: expected a whole number, got 64.0$"):
        check(recipe)
