"""Figure 4b: a weighted average of two patches with weights from Beta(alpha, alpha). 20 epochs.

The paper plots the results and prints no number.
"""

from dataclasses import replace

from fastmoco.merge import Beta
from fastmoco.methods import both
from fastmoco.recipe import Row
from fastmoco.recipes.figure3a import short
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


def _random(alpha: float) -> Row:
    return Row(replace(short, views=both((Divide(2), Encode(), Combine(2, Beta(alpha)), Project(), Predict()))))


alpha_02 = _random(0.2)
alpha_1 = _random(1.0)
alpha_4 = _random(4.0)
alpha_8 = _random(8.0)
alpha_16 = _random(16.0)
