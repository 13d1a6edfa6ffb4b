"""Figure 3a: combine two or four patches at the input, after stage 1, 2 or 3, or at the end of the encoder.

The paper plots the results and prints no number. It does not say which ablations have 20 epochs instead of 100; we
take the figures to be those. Two samples a view everywhere, as stitched maps are not used twice, and the same two.
"""

from dataclasses import replace

from fastmoco.merge import Tiles
from fastmoco.methods import both, fast_moco, two
from fastmoco.optim import SGD
from fastmoco.protocols import linear_20
from fastmoco.recipe import Recipe, Row
from fastmoco.steps import Combine, Divide, Encode, Path, Predict, Project, Stitch

short = replace(fast_moco, epochs=20, optim=SGD(lr=0.15), evaluation=linear_20)


def stitched(stage: int, first: Stitch, second: Stitch) -> Recipe:
    """The patches of each view stitched in their place after a stage; stage 0 is the input."""
    before: Path = (Divide(2), Encode(stop=stage)) if stage else (Divide(2),)
    after: Path = (Encode(start=stage), Project(), Predict())
    return replace(short, views=two((*before, first, *after), (*before, second, *after)))


# Two patches make a rectangle, lying or standing. The paper does not say which when; we take one of them for each view.
lying, standing, square = Stitch(1, 2), Stitch(2, 1), Stitch(2, 2)

input_2 = Row(stitched(0, lying, standing))
stage1_2 = Row(stitched(1, lying, standing))
stage2_2 = Row(stitched(2, lying, standing))
stage3_2 = Row(stitched(3, lying, standing))
final_2 = Row(
    replace(
        short,
        views=two(
            (Divide(2), Encode(), Combine(2, Tiles(1, 2)), Project(), Predict()),
            (Divide(2), Encode(), Combine(2, Tiles(2, 1)), Project(), Predict()),
        ),
    )
)

input_4 = Row(stitched(0, square, square))  # MoCo v3 again
stage1_4 = Row(stitched(1, square, square))
stage2_4 = Row(stitched(2, square, square))
stage3_4 = Row(stitched(3, square, square))
final_4 = Row(replace(short, views=both((Divide(2), Encode(), Combine(4), Project(), Predict()))))
