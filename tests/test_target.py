import torch
from small import crops, shrink

from fastmoco import methods
from fastmoco.learner import Learner
from fastmoco.target import Momentum


def moved(learner, names=("encoder", "projector")):
    return [p for name in names for p in getattr(learner.momentum, name).parameters()]


def test_the_copy_starts_equal_and_has_no_predictor():
    learner = Learner(shrink(methods.mocov3))
    ours = [*learner.online.encoder.parameters(), *learner.online.projector.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(ours, moved(learner), strict=True))
    assert learner.momentum.predictor is None
    assert not any(p.requires_grad for p in learner.momentum.parameters())


def test_momentum_follows_its_closed_form_and_leaves_buffers_alone():
    torch.manual_seed(0)
    alpha, steps = 0.9, 5
    learner = Learner(shrink(methods.mocov3))
    start = [p.double().clone() for p in moved(learner)]
    for value in (*learner.online.parameters(), *learner.online.buffers()):
        value.data.copy_(torch.randn(value.shape))
    buffers = {name: buffer.clone() for name, buffer in learner.momentum.named_buffers()}
    for _ in range(steps):
        Momentum(alpha).update(learner.online, learner.momentum)
    ours = [*learner.online.encoder.parameters(), *learner.online.projector.parameters()]
    for before, online, after in zip(start, ours, moved(learner), strict=True):
        closed = alpha**steps * before + (1 - alpha**steps) * online.double()
        torch.testing.assert_close(after.double(), closed, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in learner.momentum.named_buffers())


def test_the_target_keeps_statistics_of_its_own_batches():
    recipe = shrink(methods.fast_moco)
    learner = Learner(recipe)
    learner(crops(recipe))
    ours, theirs = learner.online.encoder.net.bn1, learner.momentum.encoder.net.bn1
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 2
    assert not torch.equal(ours.running_var, theirs.running_var)


def test_a_stopped_gradient_keeps_no_second_copy_of_the_weights():
    learner = Learner(shrink(methods.simsiam))
    assert learner.target is learner.online
    assert {key.split(".")[0] for key in learner.state_dict()} == {"online"}
    assert sum(p.numel() for p in learner.parameters()) == sum(p.numel() for p in learner.online.parameters())
