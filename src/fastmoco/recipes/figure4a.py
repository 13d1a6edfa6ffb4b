"""Figure 4a: a weighted average of two patches, from equal weights to the patches themselves. 20 epochs.

The paper plots gamma over [0.5, 1) and prints no number; we choose the points.
"""

from dataclasses import replace

from fastmoco.merge import Weighted
from fastmoco.methods import both
from fastmoco.recipe import Row
from fastmoco.recipes.figure3a import short
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


def _weighted(gamma: float) -> Row:
    combine = Combine(2, Weighted(gamma))
    return Row(replace(short, views=both((Divide(2), Encode(), combine, Project(), Predict()))))


gamma_050 = _weighted(0.5)
gamma_060 = _weighted(0.6)
gamma_070 = _weighted(0.7)
gamma_080 = _weighted(0.8)
gamma_090 = _weighted(0.9)
gamma_095 = _weighted(0.95)
gamma_099 = _weighted(0.99)
