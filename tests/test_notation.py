import os

import pytest

from fastmoco.contrast import InfoNCE
from fastmoco.merge import Beta
from fastmoco.methods import fast_moco
from fastmoco.notation import brief, override, read
from fastmoco.optim import SGD, AdamW
from fastmoco.steps import Combine, Divide, Encode, Project
from fastmoco.target import StopGradient


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch ran')",
        "os.system('touch ran')",
        "eval('1')",
        "Recipe.__init__.__globals__",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "InfoNCE(tau=__import__('os').getpid())",
        "(Encode(), open('ran', 'w'))",
        "f'{1}'",
        "InfoNCE().tau",
        "Encode.plan",
        "1 + 1",
        "Encode(*(1, 2))",
        "InfoNCE(**{'tau': 1})",
        "read('1')",
        "(" * 500,
        "-" * 5000 + "1",
        "-" * 50_000 + "1",
        "9" * 5000,
        "1," * 100_000,
        "'\ud800'",
        "1\0",
        "",
    ],
)
def test_text_from_a_stranger_runs_nothing(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r".") as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("-1", -1),
        ("None", None),
        ("'word'", "word"),
        ("(1, 2.5)", (1, 2.5)),
        ("Combine(2, Beta(4), count=None)", Combine(2, Beta(4.0))),
        ("Encode", Encode()),
        ("(Divide(2), Encode)", (Divide(2), Encode())),
        ("SGD(lr=1)", SGD(lr=1.0)),
    ],
)
def test_values_are_read(text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Divde(2)", "unknown name 'Divde'; the nearest known: Divide"),
        ("Divide(n=2)", "unknown field of Divide 'n'; known: m"),
        ("Divide(2, 3)", r"Divide takes 1 values \(m\), not 2"),
        ("Divide(2, m=3)", "Divide is given m twice"),
        ("Divide()", "Divide needs m: a whole number"),
        ("Divide('2')", "m of Divide: expected a whole number, got '2'"),
        ("Divide(True)", "expected a whole number"),
        ("InfoNCE(1e999)", "expected a number"),
        (f"InfoNCE({10**400})", "a whole number of 1329 bits is too large"),
        (f"Divide(0x{'f' * 20_000})", "a whole number of 80000 bits is too large"),
        ("Divide(-True)", "is not a value of a recipe"),
        (f"InfoNCE('{'a' * 10**4}')", "expected a number, got 'aaaa[a]{70,90}$"),
        ("View(count=1000000000, online=(Encode,))", "use 1 to 20,000 pixels and crops"),
        ("Combine(2, InfoNCE())", "merge of Combine: expected Mean or Tiles or .*, got InfoNCE, which has no groups"),
        ("Recipe(3)", "views of Recipe: expected a tuple of View, got 3"),
        ("View(online=(1,))", "online of View"),
        ("View(resize='nearest')", "'bicubic' or 'bilinear'"),
        ("MLP((2.5,))", "widths of MLP"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_name(text, reason):
    with pytest.raises(ValueError, match=reason):
        read(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Encode(), "Encode"),
        (Encode(stop=2), "Encode(stop=2)"),
        (Combine(2, count=4), "Combine(2, count=4)"),
        (Combine(2, Beta(0.2)), "Combine(2, Beta(0.2))"),
        ((Encode(),), "(Encode,)"),
        (StopGradient(), "StopGradient"),
    ],
)
def test_brief_leaves_defaults_out(value, text):
    assert brief(value) == text
    assert read(text) == value


def test_overrides_walk_the_recipe():
    changed = override(
        fast_moco,
        [
            "optim.lr=0.15",
            "encoder=resnet18",
            "views.*.size=64",
            "views.1.augment.blur_p=1",
            "views.*.online.2.count=4",
        ],
    )
    assert (changed.optim.lr, changed.encoder) == (0.15, "resnet18")
    assert [view.size for view in changed.views] == [64, 64]
    assert [view.augment.blur_p for view in changed.views] == [0.5, 1.0]
    assert [view.online[2] for view in changed.views] == [Combine(2, count=4)] * 2
    assert override(fast_moco, []) == fast_moco
    assert override(fast_moco, ["encoder='resnet18'"]).encoder == "resnet18"


def test_whole_values_can_be_set():
    changed = override(fast_moco, ["optim=AdamW(lr=0.001)", "target=StopGradient", "contrast=InfoNCE(0.2)"])
    assert (changed.optim, changed.target, changed.contrast) == (AdamW(lr=0.001), StopGradient(), InfoNCE(0.2))
    # A setting walks into what an earlier one has put there.
    assert override(fast_moco, ["optim=AdamW(lr=0.001)", "optim.betas.1=0.95"]).optim.betas == (0.9, 0.95)
    assert override(fast_moco, ["views.0.online.2=Combine(4)"]).views[0].online[2] == Combine(4)
    assert override(fast_moco, ["views.*.online=(Encode, Project)"]).views[0].online == (Encode(), Project())


def test_settings_that_belong_together_come_in_any_order():
    settings = ["projector.widths=(256,)", "predictor.widths=(64, 256)"]
    assert override(fast_moco, settings) == override(fast_moco, settings[::-1])
    assert override(fast_moco, settings).projector.widths == (256,)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("optm.lr=1", "unknown Recipe field 'optm'; the nearest known: optim"),
        ("optim.lrr=1", "unknown SGD field 'lrr'; the nearest known: lr"),
        ("optim.lr", "not NAME=VALUE"),
        ("optim.lr=fast", "expected a number, got fast"),
        ("optim.lr=nan", "expected a number"),
        ("batch=64.5", "expected a whole number, got 64.5"),
        ("optim.lr.x=1", "has nothing inside it"),
        ("views.2.size=1", "unknown place '2'; use 0 to 1, or \\* for all"),
        ("views.-1.size=1", "unknown place '-1'"),
        ("views.*.online.2=Combin(2)", "unknown name 'Combin'; the nearest known: Combine"),
        ("contrast=Mean", "expected InfoNCE or Cosine, got Mean, which has no chance"),
        ("schedule.predictor=never", "'constant' or 'scheduled'"),
        ("views.0.size=225", "view 0, online path: Divide"),
        ("encoder=resnet5", "unknown encoder"),
        ("=1", "unknown Recipe field ''"),
    ],
)
def test_a_bad_setting_is_one_line(setting, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        override(fast_moco, [setting])
    assert "\n" not in str(caught.value)
