"""Nearest neighbours against scikit-learn, which finds and weighs them by its own code."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from fastmoco.evaluate.knn import vote
from fastmoco.evaluate.scores import top1

# Queries, bank, width, classes and k, the last of which is all of the bank; then one that asks for more than there is.
SHAPES = [(1, 2, 3, 2, 1), (50, 200, 8, 4, 1), (300, 500, 64, 10, 20), (37, 1000, 512, 100, 200), (40, 30, 16, 3, 30)]
MORE = (40, 30, 16, 3, 31)


def features(queries, bank, width, classes):
    """Loose clusters, in which no two cosines are equal."""
    generator = np.random.default_rng(queries + bank + width)
    labels = generator.integers(classes, size=queries + bank)
    labels[queries : queries + classes] = np.arange(classes)  # scikit-learn knows only classes that it has seen
    found = generator.normal(size=(classes, width))[labels] + 2 * generator.normal(size=(queries + bank, width))
    x, y = torch.from_numpy(found.astype(np.float32)), torch.from_numpy(labels)
    return x[:queries], y[:queries], x[queries:], y[queries:]


def fit(bank, labels, k, temperature=0.07):
    """The classifier of scikit-learn, in double precision."""
    classifier = KNeighborsClassifier(
        min(k, len(bank)),
        weights=lambda distances: np.exp((1 - distances) / temperature),
        algorithm="brute",
        metric="cosine",
    )
    return classifier.fit(bank.double().numpy(), labels.numpy())


@pytest.mark.parametrize(("queries", "bank", "width", "classes", "k"), SHAPES)
def test_neighbours_are_those_of_scikit_learn(queries, bank, width, classes, k):
    x, _, others, _ = features(queries, bank, width, classes)
    finder = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(others.double().numpy())
    nearest = finder.kneighbors(x.double().numpy(), return_distance=False)
    # Each image is a class of its own, so who votes is who is near.
    votes = vote(x, others, torch.arange(bank), bank, k, temperature=10.0)
    assert [set(row.nonzero()[:, 0].tolist()) for row in votes] == [set(row) for row in nearest.tolist()]
    first = vote(x, others, torch.arange(bank), bank, k, temperature=0.07).argmax(1)
    np.testing.assert_array_equal(first, nearest[:, 0])


@pytest.mark.parametrize("temperature", [0.07, 1.0])
@pytest.mark.parametrize(("queries", "bank", "width", "classes", "k"), [*SHAPES, MORE])
def test_votes_and_predictions_are_those_of_scikit_learn(queries, bank, width, classes, k, temperature):
    x, truth, others, labels = features(queries, bank, width, classes)
    classifier = fit(others, labels, k, temperature)
    votes = vote(x, others, labels, classes, k, temperature)
    np.testing.assert_allclose(votes, classifier.predict_proba(x.double().numpy()), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(votes.argmax(1), classifier.predict(x.double().numpy()))
    assert top1(votes, truth) == pytest.approx(100 * classifier.score(x.double().numpy(), truth.numpy()))


@pytest.mark.parametrize("k", [1, 20, 199])
def test_without_the_image_itself_votes_are_those_of_scikit_learn(k):
    _, _, bank, labels = features(1, 200, 32, 5)
    # Asked for no points, scikit-learn leaves each one out of its own neighbours.
    graph = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(bank.double().numpy())
    distances, nearest = graph.kneighbors()
    weights = np.exp((1 - distances) / 0.07)
    expected = (weights[..., None] * np.eye(5)[labels.numpy()[nearest]]).sum(1) / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(vote(bank, bank, labels, 5, k, own=True), expected, rtol=1e-3, atol=1e-6)
