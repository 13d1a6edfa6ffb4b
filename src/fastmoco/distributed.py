"""Many processes as one: what they tell each other and compute together; each an identity on one process."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


def grouped() -> bool:
    """Whether there is a group of processes, even a group of one."""
    return dist.is_available() and dist.is_initialized()


def world() -> int:
    return dist.get_world_size() if grouped() else 1


def rank() -> int:
    return dist.get_rank() if grouped() else 0


def leads() -> bool:
    """Rank 0 alone prints and writes."""
    return rank() == 0


def launched() -> bool:
    """Whether torchrun, or a scheduler that speaks as it does, has started this process as one of a group."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """Among the processes of this machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0


def local_world() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched() else 1


# What they tell each other


def agree(mine: T | None) -> list[T | None] | None:
    """What every rank has to tell; None if none has anything, which costs one number."""
    if not grouped():
        return None if mine is None else [mine]
    news = torch.tensor(mine is not None, dtype=torch.int32)
    dist.all_reduce(news, dist.ReduceOp.MAX)
    if not news:
        return None
    heard: list[T | None] = [None] * world()
    dist.all_gather_object(heard, mine)
    return heard


def tell(find: Callable[[], T]) -> T:
    """What rank 0 finds, or refuses, for all."""
    if not grouped():
        return find()
    outcome: list[Any] = [None, None]
    if leads():
        try:
            outcome = [find(), None]
        except (ValueError, OSError) as error:
            outcome = [None, error]
    dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    value: T = outcome[0]
    return value


@contextmanager
def together() -> Iterator[None]:
    """What any rank refuses, all refuse, in its words. Nothing that is done together may be inside."""
    mistake = None
    try:
        yield
    except OSError as error:
        mistake = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        if not grouped():
            raise
    except ValueError as error:
        mistake = str(error)
        if not grouped():
            raise
    heard = agree(mistake)
    if heard is not None:
        number, words = next((number, words) for number, words in enumerate(heard) if words is not None)
        raise ValueError(words if number == 0 else f"rank {number}: {words}")  # rank 0 speaks for all


@contextmanager
def first_per_machine() -> Iterator[None]:
    """First one process of each machine, then the others, which find what the first has written."""
    if local_rank() > 0:
        agree(None)
    try:
        yield
    finally:
        if local_rank() == 0:
            agree(None)


def same(flags: Mapping[str, object]) -> None:
    """Refuse flags that differ from rank 0's: ranks would do different things, and wait for each other for ever."""
    theirs = tell(lambda: dict(flags))
    with together():
        for name, value in flags.items():
            if theirs[name] != value:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} is {value} here and {theirs[name]} for rank 0; give all machines the same")


# What they compute together


@torch.no_grad()
def gather(x: Shaped[Tensor, " b *shape"]) -> Shaped[Tensor, " n *shape"]:
    """The rows of every rank, as many from each, in the order of ranks; without gradient."""
    return gather_later(x)()


@torch.no_grad()
def gather_later(x: Shaped[Tensor, " b *shape"]) -> Callable[[], Shaped[Tensor, " n *shape"]]:
    """Begin to `gather`; what is returned waits for the rows, which travel meanwhile."""
    x = x.detach()
    if not grouped():
        return lambda: x
    x = x.contiguous()
    everyone = x.new_empty(world() * len(x), *x.shape[1:])
    work = dist.all_gather(list(everyone.chunk(world())), x, async_op=True)

    def wait() -> Tensor:
        work.wait()
        return everyone

    return wait


@torch.no_grad()
def concatenate(x: Shaped[Tensor, " b *shape"]) -> Shaped[Tensor, " n *shape"]:
    """The rows of every rank, however many each has, in the order of ranks; without gradient."""
    if not grouped():
        return x.detach()
    counts = gather(torch.tensor([len(x)], device=x.device)).tolist()
    padded = x.new_zeros(max(counts), *x.shape[1:])
    padded[: len(x)] = x
    parts = gather(padded).chunk(world()) if max(counts) else [padded] * world()
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@torch.no_grad()
def total(x: Shaped[Tensor, " *shape"], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Shaped[Tensor, " *shape"]:
    """The sum over all ranks, or by `op` the most or least; without gradient."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    if grouped():
        dist.all_reduce(x, op)
    return x


class Swap(torch.autograd.Function):
    """Each rank sends some of its rows to each other rank, with gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        return _swap(x, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _swap(gradient, ctx.received, ctx.sent), None, None


def _swap(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    y = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(y, x.contiguous(), received, sent)
    return y


def permute(x: Float[Tensor, " b *shape"], places: Int64[Tensor, " n"]) -> Float[Tensor, " m *shape"]:
    """The rows of all ranks in a new order, of which each rank gets an equal part; with gradient.

    `places` are on the CPU, the same on every rank: row i of the result is the row `places[i]` of all.
    """
    if not grouped():
        return x[places.to(x.device)]
    owners, homes = places // len(x), places % len(x)
    mine = slice(rank() * len(places) // world(), (rank() + 1) * len(places) // world())
    takers = torch.arange(world()).repeat_interleave(len(places) // world())
    leaving = homes[owners == rank()]  # in the order of takers, as places are
    sent = torch.bincount(takers[owners == rank()], minlength=world()).tolist()
    received = torch.bincount(owners[mine], minlength=world()).tolist()
    arrived: Tensor = Swap.apply(x[leaving.to(x.device)], sent, received)
    # They come in the order of their owners, each owner's in the order of places.
    return arrived[owners[mine].argsort(stable=True).argsort().to(x.device)]


def parallel(module: nn.Module) -> DistributedDataParallel | None:
    """A module whose gradients are brought together over all ranks while backward is still at work; None if alone.

    Buffers stay where they are: batch norm keeps the same ones on every rank, and so does NNCLR's support set.
    """
    if not grouped():
        return None
    known = inspect.signature(DistributedDataParallel).parameters  # torch 2.15 has a new name for it
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True, "static_graph": True}
    made = DistributedDataParallel(module, **options)
    made._set_ddp_runtime_logging_sample_rate(20)  # type: ignore[no-untyped-call]
    return made


# What torch measures of a step in which gradients travel, in nanoseconds, and what we call it.
TIMES = {
    "perf/forward": "forward_compute_time",
    "perf/backward": "backward_compute_time",
    "perf/communication": "backward_comm_time",
    "perf/overlap": "backward_compute_comm_overlap_time",
}


def timing(module: DistributedDataParallel) -> dict[str, float]:
    """Seconds of one of the last steps: of forward and backward, of gradients on their way, of both at once."""
    found = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return {name: found[key] / 1e9 for name, key in TIMES.items() if key in found}


def share(count: int, block: int = 1) -> range:
    """Which of `count` things this rank takes: whole blocks, in the order of ranks."""
    blocks = -(-count // block)
    first, last = (place * blocks // world() * block for place in (rank(), rank() + 1))
    return range(min(first, count), min(last, count))
