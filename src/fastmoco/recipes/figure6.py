"""Figure 6: Figure 3a for two patches, and with them combined after the projector or the predictor too.

The paper plots the results and prints no number. "After" is before the next step, or the contrast.
"""

from dataclasses import replace

from fastmoco.merge import Tiles
from fastmoco.methods import two
from fastmoco.recipe import Row
from fastmoco.recipes import figure3a
from fastmoco.recipes.figure3a import short
from fastmoco.steps import Combine, Divide, Encode, Predict, Project

input_2 = figure3a.input_2
stage1_2 = figure3a.stage1_2
stage2_2 = figure3a.stage2_2
stage3_2 = figure3a.stage3_2
final_2 = figure3a.final_2
projector_2 = Row(
    replace(
        short,
        views=two(
            (Divide(2), Encode(), Project(), Combine(2, Tiles(1, 2)), Predict()),
            (Divide(2), Encode(), Project(), Combine(2, Tiles(2, 1)), Predict()),
        ),
    )
)
predictor_2 = Row(
    replace(
        short,
        views=two(
            (Divide(2), Encode(), Project(), Predict(), Combine(2, Tiles(1, 2))),
            (Divide(2), Encode(), Project(), Predict(), Combine(2, Tiles(2, 1))),
        ),
    )
)
