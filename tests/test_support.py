import torch
import torch.nn.functional as F
from small import crops, shrink

from fastmoco import methods
from fastmoco.learner import Learner
from fastmoco.support import Support


def unit(*shape):
    return F.normalize(torch.randn(*shape), dim=1)


def test_the_nearest_vector_by_cosine_equals_brute_force():
    torch.manual_seed(0)
    support, x = Support(32, 8), torch.randn(5, 8)
    found = support(x)
    for embedding, neighbour in zip(x, found, strict=True):
        cosines = [F.cosine_similarity(embedding, vector, dim=0).item() for vector in support.vectors]
        assert torch.equal(neighbour, support.vectors[cosines.index(max(cosines))])


def test_autocast_does_not_blur_the_neighbours():
    torch.manual_seed(0)
    support, place = Support(512, 32), F.normalize(torch.randn(32), dim=0)
    support.vectors.copy_(F.normalize(place + 0.05 * torch.randn(512, 32), dim=1))  # all near each other
    x = place + 0.05 * torch.randn(64, 32)
    sharp = support(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        unit = F.normalize(x, dim=1)
        assert not torch.equal(support.vectors[(unit @ support.vectors.T).argmax(1)], sharp), "too easy to tell"
        assert torch.equal(support(x), sharp)


def test_nothing_is_stored_until_the_step_is_over():
    torch.manual_seed(0)
    support, first, second = Support(8, 4), unit(2, 4), unit(2, 4)
    before = support.vectors.clone()
    support(first)
    assert torch.equal(support.vectors, before)
    assert not torch.equal(support(first), first), "a target found itself"
    support.noted.clear()
    support(first), support(second)
    support.store()
    torch.testing.assert_close(support.vectors[:4], torch.cat([first, second]))
    assert torch.equal(support.vectors[4:], before[4:])
    torch.testing.assert_close(support(first), first)


def test_the_oldest_vectors_go_first():
    support = Support(6, 4)
    batches = [unit(4, 4) for _ in range(4)]
    for batch in batches:
        support(batch)
        support.store()
    history = torch.cat(batches)
    kept = {tuple(vector.tolist()) for vector in support.vectors}
    assert kept == {tuple(vector.tolist()) for vector in F.normalize(history[-6:], dim=1)}
    assert support.next == 16 % 6


def test_a_step_larger_than_the_set_keeps_its_newest():
    support, batch = Support(3, 4), unit(5, 4)
    support(batch)
    support.store()
    torch.testing.assert_close(support.vectors.sort(0).values, batch[-3:].sort(0).values)


def test_a_batch_that_no_update_follows_is_not_stored():
    recipe = shrink(methods.nnclr)
    learner = Learner(recipe)
    learner(crops(recipe, seed=0))
    learner(crops(recipe, seed=1))
    learner.update()
    assert learner.target.support.next == 2 * recipe.batch


def test_the_place_of_the_oldest_is_saved_too():
    assert {"vectors", "next"} == set(Support(4, 2).state_dict())


def test_nnclr_never_returns_a_target_of_its_own_step():
    recipe = shrink(methods.nnclr_patches)
    torch.manual_seed(0)
    learner = Learner(recipe)
    support = learner.momentum.support
    for step in range(3):
        before = support.vectors.clone()
        learner(crops(recipe, seed=step))
        _, targets = learner.latest
        for neighbour in targets.x.flatten(0, 1):
            assert (neighbour == before).all(1).any(), "a target is not from an earlier step"
        noted = torch.cat(support.noted)
        assert len(noted) == 2 * recipe.batch
        learner.update()
        stored = {tuple(vector.tolist()) for vector in support.vectors}
        assert {tuple(vector.tolist()) for vector in noted} <= stored
        assert not support.noted
