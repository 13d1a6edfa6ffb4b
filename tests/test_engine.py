"""Steps in gear against the same steps written out, and recordings against a GPU that is only pretended."""

import copy
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import torch
from small import crops, shrink

from fastmoco import engine, methods
from fastmoco.contrast import Cosine, InfoNCE
from fastmoco.engine import WARM, Engine, Gear, Recording, recordable
from fastmoco.learner import Learner
from fastmoco.merge import Beta
from fastmoco.methods import both
from fastmoco.optim import LARS, SGD, AdamW, build, restore
from fastmoco.recipes import rows
from fastmoco.steps import Combine, Divide, Encode, Predict, Project
from fastmoco.target import Momentum

CPU = torch.device("cpu")
OPTIMS = [SGD(), AdamW(), LARS(lr=0.5)]
GRAPH = torch.cuda.CUDAGraph
GPU = torch.device("cuda", 1)
BY_NAME = {"ids": lambda value: type(value).__name__}


def recipe(**changes):
    return replace(shrink(methods.fast_moco), encoder="timm/test_resnet", **changes)


def started(made, recorded=False):
    """An engine with the seed's weights; a CPU records nothing, but its rates can be tensors."""
    torch.manual_seed(0)
    begun = Engine(Learner(made), Gear(CPU))
    if recorded:
        begun.optimizer = build(made.optim, begun.learner.online, recorded=True)
    begun.start()
    return begun


def same(ours, theirs):
    for name, value in ours.state_dict().items():
        assert value.equal(theirs.state_dict()[name]), name


@pytest.mark.parametrize("optim", OPTIMS, **BY_NAME)
def test_a_step_is_loss_gradient_clip_optimiser_and_target(optim):
    made = recipe(optim=optim, clip=0.5)
    ours = started(made)
    torch.manual_seed(0)
    learner = Learner(made).to(memory_format=torch.channels_last)
    optimizer = build(optim, learner.online)
    for step, part in enumerate((1.0, 0.7, 0.2)):
        views = crops(made, seed=step)
        optimizer.param_groups[0]["lr"] = optim.lr * part  # and the predictor's stays
        loss = learner(views)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learner.online.parameters(), 0.5)
        optimizer.step()
        learner.update()
        told = ours.step(part, views)
        assert [each.item() for each in told] == [loss.item(), norm.item()]
        assert not told[0].requires_grad
    same(ours.learner, learner)
    assert ours.timing() == {}


def of_before(state):
    """As it was written when optimisers were not fused, with rates of its own."""
    old = copy.deepcopy(state)
    for group in old["param_groups"]:
        group |= {"fused": None, "foreach": None, "lr": 123.0}
        group.pop("decoupled_weight_decay", None)
    return old


@pytest.mark.parametrize("optim", OPTIMS, **BY_NAME)
@pytest.mark.parametrize("change", [copy.deepcopy, of_before])
def test_what_was_remembered_comes_back_and_rates_and_options_stay(optim, change):
    made = recipe(optim=optim)
    first, second = started(made), started(made)
    options = [{name: group[name] for name in group if name != "params"} for group in second.optimizer.param_groups]
    for step in range(2):
        first.step(0.5, crops(made, seed=step))
    second.learner.load_state_dict(first.learner.state_dict())
    restore(second.optimizer, change(first.optimizer.state_dict()))
    here = second.optimizer.param_groups
    assert [{name: group[name] for name in group if name != "params"} for group in here] == options
    remembered = second.optimizer.state_dict()["state"]
    assert remembered
    for index, buffers in first.optimizer.state_dict()["state"].items():
        for name, value in buffers.items():
            assert value.equal(remembered[index][name]), name
    for each in (first, second):
        each.step(0.3, crops(made, seed=2))
    same(second.learner, first.learner)


@pytest.mark.parametrize("optim", OPTIMS, **BY_NAME)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_recorded_training_goes_on_unrecorded_and_the_other_way_round(optim, recorded, tmp_path):
    made = recipe(optim=optim)
    first, second = started(made, recorded), started(made, not recorded)
    first.step(0.5, crops(made))
    torch.save([first.learner.state_dict(), first.optimizer.state_dict()], tmp_path / "state.pt")
    weights, remembered = torch.load(tmp_path / "state.pt", weights_only=True)
    second.learner.load_state_dict(weights)
    restore(second.optimizer, remembered)
    kinds = {isinstance(group["lr"], torch.Tensor) for group in second.optimizer.param_groups}
    assert kinds == {not recorded}
    for each in (first, second):
        each.step(0.25, crops(made, seed=1))
    for name, value in first.learner.state_dict().items():
        torch.testing.assert_close(second.learner.state_dict()[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_a_gpu_may_record_all_rows_but_those_that_draw_on_the_way_or_are_timms():
    drawing = {f"figure4b/alpha_{alpha}" for alpha in ("02", "1", "4", "8", "16")}
    montage = {"table4a/montage_encode_divide_combine"}
    timms = {name for name, row in rows().items() if row.recipe.encoder.startswith("timm/")}
    assert {"pocket/shapes", "pocket/shapes_mocov3"} <= timms
    assert {name for name, row in rows().items() if not recordable(row.recipe)} == drawing | montage | timms


@dataclass(frozen=True)
class OwnCosine(Cosine):
    """What someone might write."""


@dataclass(frozen=True)
class OwnEncode(Encode):
    """Another."""


@dataclass(frozen=True)
class OwnMomentum(Momentum):
    """And another."""


@pytest.mark.parametrize(
    "changes",
    [
        {"contrast": OwnCosine()},
        {"target": OwnMomentum()},
        {"encoder": "timm/test_resnet"},
        {"views": both((OwnEncode(), Project(), Predict()))},
        {"views": both((Encode(), Project(), Predict()), target=(OwnEncode(), Project()))},
        {"views": both((Divide(2), Encode(), Combine(2, Beta(1.0)), Project(), Predict()))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_someone_else_has_written_or_what_draws_is_not_recorded(changes):
    assert recordable(methods.fast_moco)
    assert recordable(replace(methods.simsiam, contrast=InfoNCE(0.1)))
    assert not recordable(replace(methods.fast_moco, **changes))


class Pretended:
    """A GPU that records: what is called while it does is made at every replay, and not at once."""

    def __init__(self):
        self.told, self.recorded, self.failure = [], [], None

    def Stream(self, device):  # noqa: N802
        assert device == GPU, "not that of whichever device is current"
        return self

    def current_stream(self, device):
        assert device == GPU
        return self

    def wait_stream(self, other):
        self.told.append("wait")

    @contextmanager
    def stream(self, stream):
        self.told.append("aside")
        yield
        self.told.append("back")

    def CUDAGraph(self):  # noqa: N802
        return Mock(GRAPH, replay=self.replay)

    @contextmanager
    def graph(self, graph, stream, capture_error_mode):
        assert stream is self
        assert capture_error_mode == "thread_local"
        self.told.append("record")
        yield
        if self.failure is not None:
            raise self.failure

    def replay(self):
        self.told.append("replay")
        for make in self.recorded:
            make()


@pytest.fixture
def gpu(monkeypatch):
    pretended = Pretended()
    for name in ("Stream", "current_stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(pretended, name))
    return pretended


def noise(seed):
    return [torch.randn(1, 2, 3, 4, 4, generator=torch.Generator().manual_seed(10 * seed + view)) for view in range(2)]


def summing(gpu, seen):
    """A step that tells the sum of its views, in two tensors that it makes once."""

    def make(views):
        outcome = torch.zeros(()), torch.zeros(())

        def compute():
            seen.append([view.clone() for view in views])
            outcome[0].copy_(sum(view.sum() for view in views))
            outcome[1].copy_(views[0].norm())

        if gpu.told and gpu.told[-1] == "record":
            gpu.recorded.append(compute)
        else:
            compute()
        return outcome

    return make


def warmed(gpu):
    """A step that will be recorded the next time."""
    step = Recording(summing(gpu, []), GPU)
    for number in range(WARM):
        step(noise(number))
    return step


def test_the_first_steps_are_made_and_all_others_played_back_on_their_own_views(gpu):
    seen = []
    step = Recording(summing(gpu, seen), GPU)
    for number in range(WARM + 3):
        given = noise(number)
        before = [view.clone() for view in given]
        loss, norm = step(given)
        assert loss.item() == pytest.approx(sum(view.sum() for view in before).item(), abs=1e-5)
        assert norm.item() == pytest.approx(before[0].norm().item())
        assert len(seen) == number + 1
        assert all(map(torch.equal, seen[-1], before))
        assert all(map(torch.equal, given, before)), "what a loader has made is left alone"
    assert gpu.told == ["wait", "aside", "back", "wait"] * WARM + ["record"] + ["replay"] * 3


def test_views_of_another_number_are_not_played_back(gpu):
    step = Recording(summing(gpu, []), GPU)
    for number in range(WARM + 1):
        step(noise(number))
    with pytest.raises(ValueError, match="zip"):
        step(noise(9)[:1])


def test_a_step_that_cannot_be_recorded_is_told_in_a_line(gpu):
    step = warmed(gpu)
    gpu.failure = RuntimeError("operation not permitted when stream is capturing\nCompile with this\nand that")
    reason = r"^a step of this recipe cannot be recorded \(operation not .* capturing\); use --graph off"
    with pytest.raises(ValueError, match=reason) as told:
        step(noise(WARM))
    assert "\n" not in str(told.value)


def test_want_of_memory_while_recording_stays_what_it_is(gpu):
    step = warmed(gpu)
    gpu.failure = torch.OutOfMemoryError("tried to allocate 3 GiB")
    with pytest.raises(torch.OutOfMemoryError, match="3 GiB"):
        step(noise(WARM))


def test_want_of_memory_that_the_end_of_a_recording_hides_is_told_as_such(gpu):
    step = warmed(gpu)
    gpu.failure = RuntimeError("capture was invalidated")
    gpu.failure.__context__ = torch.OutOfMemoryError("tried to allocate 3 GiB")
    with pytest.raises(torch.OutOfMemoryError, match="3 GiB"):
        step(noise(WARM))


def test_a_worker_that_dies_while_a_step_is_recorded_is_no_fault_of_the_recipe(gpu):
    step = warmed(gpu)
    gpu.failure = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        step(noise(WARM))


def test_the_encoders_of_both_branches_are_compiled_and_no_head(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: compiled.append(module))
    engine = Engine(Learner(recipe()), Gear(torch.device("cpu"), compile=True))
    assert not compiled, "weights may still be read"
    engine.start()
    assert compiled == [engine.learner.online.encoder, engine.learner.momentum.encoder]


def test_an_engine_that_is_to_record_does(gpu, monkeypatch):
    made = recipe()
    begun = started(made)
    begun.gear = replace(begun.gear, graph=True, device=GPU)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)  # for all tests after this one
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    begun.start()
    calls = []
    monkeypatch.setattr(engine, "descend", lambda *given: calls.append(given) or (torch.ones(()), torch.ones(())))
    for number in range(WARM + 2):
        begun.step(1.0, crops(made, seed=number))
    assert len(calls) == WARM + 1
    assert gpu.told.count("replay") == 2


def test_the_rates_of_an_engine_that_is_to_record_are_tensors():
    made = recipe()
    rates = [group["lr"] for group in Engine(Learner(made), Gear(CPU, graph=True)).optimizer.param_groups]
    assert [rate.item() for rate in rates] == pytest.approx([made.optim.lr] * 2)


def settings():
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


def test_torchs_settings_are_put_back_whatever_happens():
    before = settings()
    with engine.quick():
        assert settings() == ("high", True)
    assert settings() == before
    with pytest.raises(KeyboardInterrupt), engine.quick():
        raise KeyboardInterrupt
    assert settings() == before


def test_an_engine_on_a_gpu_has_them_from_its_start_to_its_release():
    before, at_work = settings(), Engine(Learner(recipe()), Gear(CPU))
    at_work.gear = Gear(GPU)  # so that it takes itself for one
    at_work.start()
    assert settings() == ("high", True)
    at_work.release()
    assert settings() == before


def test_a_precision_that_someone_has_set_by_newer_names_is_theirs():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with engine.quick():
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
