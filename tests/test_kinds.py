"""What a field of a recipe may hold, and the line that says so."""

from dataclasses import dataclass

import pytest

from fastmoco.contrast import InfoNCE
from fastmoco.heads import MLP
from fastmoco.kinds import check, fit, hints
from fastmoco.merge import Mean
from fastmoco.methods import fast_moco
from fastmoco.recipe import Recipe


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
    assert type(fit(1, float)) is float


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
