"""A learner at work: where its steps are computed, and how. Nothing here changes what is learnt, beyond rounding."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fastmoco import checkpoint, distributed, optim
from fastmoco.contrast import Cosine, InfoNCE
from fastmoco.descent import descend
from fastmoco.encoder import whole_only
from fastmoco.learner import Learner
from fastmoco.merge import Max, Mean, Tiles, Weighted
from fastmoco.norm import synchronise
from fastmoco.recipe import SIDES, Recipe
from fastmoco.steps import Combine, Divide, Encode, Nearest, Predict, Project, Stitch
from fastmoco.target import Momentum, StopGradient
from fastmoco.thrift import spare

Views = Sequence[Float[Tensor, "_ b 3 _ _"]]
Outcome = tuple[Float[Tensor, ""], Float[Tensor, ""]]  # the loss, and the norm of the gradient

WARM = 3  # steps before one is recorded: what is compiled, and what is allocated once, must be there by then

# Of torch's compiler: GPUs are quicker at matrix products than at 1x1 convolutions, which are the same.
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {"conv_1x1_as_mm": True}

# What computes the same in every step, on the device alone. What draws on the host, as a montage does, would be
# recorded with what it drew, and what someone else has written may count steps there.
STEPS = (Divide, Stitch, Encode, Combine, Project, Predict, Nearest)
MERGES = (Mean, Tiles, Max, Weighted)
CONTRASTS, TARGETS = (InfoNCE, Cosine), (Momentum, StopGradient)


@dataclass(frozen=True)
class Gear:
    """How steps are computed."""

    device: torch.device
    bf16: bool = False
    compile: bool = False
    graph: bool = False  # the kernels of a step are recorded once, and from then on started all at once
    channels_last: bool = True  # faster on a CPU, too
    recompute: bool = False  # the encoder's activations in the backward pass
    micro: int = 0  # images that an encoder sees at once; 0 is all


class Engine:
    """A learner and its optimiser in gear. All ranks make it, and start it when its weights are what they should be."""

    def __init__(self, learner: Learner, gear: Gear) -> None:
        self.gear = gear
        if gear.compile and gear.device.type == "cuda":
            # The processes that compile need seconds to be ready, and before that kernels are compiled one by one.
            with contextlib.suppress(ImportError):  # a later torch may know it by another name
                from torch._inductor.async_compile import maybe_warm_pool

                maybe_warm_pool()
        self.learner = learner.to(gear.device)
        if gear.channels_last:
            self.learner.to(memory_format=torch.channels_last)
        synchronise(self.learner, gear.device, gear.compile)
        spare(self.learner, gear.recompute, gear.micro)
        self.optimizer = optim.build(learner.recipe.optim, self.learner.online, recorded=gear.graph)
        self._settings = contextlib.ExitStack()
        self._forward: nn.parallel.DistributedDataParallel | None = None
        self._take: Callable[[Views], Outcome] = self._make

    def start(self) -> None:
        """Compile the networks, and join the ranks: from now on only steps change weights."""
        if self.gear.device.type == "cuda":
            self._settings.enter_context(quick())
        if self.gear.compile:
            for branch in (self.learner.online, self.learner.momentum):
                if branch is not None:  # heads are a small part, and would make the first step wait longer
                    branch.encoder.compile(dynamic=False, options=OPTIONS if self.gear.device.type == "cuda" else None)
        self._forward = distributed.parallel(self.learner)
        if self.gear.graph:
            self._take = Recording(self._make, self.gear.device)

    def step(self, part: float, views: Views) -> Outcome:
        """One step, at this part of the full learning rate."""
        recipe = self.learner.recipe
        optim.set_rate(self.optimizer, recipe.optim, recipe.schedule, part)
        return self._take(views)

    def state(self) -> checkpoint.State:
        """All that steps change. Beta weights and montages draw from torch's generators."""
        return {
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **checkpoint.generators(self.gear.device),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        optim.restore(self.optimizer, state["optimizer"])
        checkpoint.restore_generators(state, self.gear.device)

    def release(self) -> None:
        """Let go of what a recording holds, and of the last batch: a device may be short of memory."""
        self._settings.close()
        self._take, self.learner.latest = self._make, None
        self.optimizer.zero_grad()

    def timing(self) -> dict[str, float]:
        """How long the gradients of ranks were on their way, if there are any."""
        return {} if self._forward is None else distributed.timing(self._forward)

    def _make(self, views: Views) -> Outcome:
        return descend(self.learner, self.optimizer, views, self.gear.bf16, self._forward)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Torch's settings for a GPU that trains. They are the process's own, so they are put back as they were."""
    searched = torch.backends.cudnn.benchmark
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # someone has set it by torch's newer names, which do not go with these; it is theirs
        precision = ""
    torch.backends.cudnn.benchmark = True
    if precision:
        torch.set_float32_matmul_precision("high")  # what is left in float32 may round as TF32
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = searched
        if precision:
            torch.set_float32_matmul_precision(precision)


class Recording:
    """A step that a GPU knows by heart: the host starts one thing in the place of thousands.

    The first steps are made as usual. Then one is recorded, and from there on it is played back, on views that are
    copied to where those of the recording lay. What it left behind is renewed in its place.
    """

    def __init__(self, make: Callable[[Views], Outcome], device: torch.device) -> None:
        self.make = make
        self.device = device
        self.made = 0
        self.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.views: list[Tensor] = []

    def __call__(self, views: Views) -> Outcome:
        if self.made < WARM:
            self.made += 1
            return self._warm(views)
        if self.graph is None:
            self.graph = self._record(views)
        for ours, given in zip(self.views, views, strict=True):
            ours.copy_(given)
        self.graph.replay()
        return self.outcome

    def _warm(self, views: Views) -> Outcome:
        """On another stream, as torch asks for."""
        here = torch.cuda.current_stream(self.device)
        self.aside.wait_stream(here)
        with torch.cuda.stream(self.aside):
            outcome = self.make(views)
        here.wait_stream(self.aside)
        return outcome

    def _record(self, views: Views) -> torch.cuda.CUDAGraph:
        """Nothing is computed while a step is recorded."""
        self.views = [view.clone() for view in views]
        graph = torch.cuda.CUDAGraph()
        try:
            # Another thread may pin memory meanwhile.
            with torch.cuda.graph(graph, stream=self.aside, capture_error_mode="thread_local"):
                self.outcome = self.make(self.views)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):  # for which the end of a recording is at a loss
                raise error.__context__ from None
            if "DataLoader worker" in str(error):  # which torch raises wherever we are, when it hears of it
                raise
            reason = str(error).partition("\n")[0][:120]
            raise ValueError(f"a step of this recipe cannot be recorded ({reason}); use --graph off") from None
        return graph


def recordable(recipe: Recipe) -> bool:
    """Whether a step is known to be the same each time, on the device alone."""
    steps = [step for view in recipe.views for side in SIDES for step in getattr(view, side)]
    return (
        all(type(step) in STEPS for step in steps)
        and all(type(step.merge) in MERGES for step in steps if isinstance(step, Combine))
        and type(recipe.contrast) in CONTRASTS
        and type(recipe.target) in TARGETS
        and not whole_only(recipe.encoder)  # who knows what a timm model does
    )
