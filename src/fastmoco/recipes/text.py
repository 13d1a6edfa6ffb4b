"""Numbers that stand only in the text of the paper. 100 epochs, ImageNet linear top-1."""

from dataclasses import replace

from fastmoco.merge import Max
from fastmoco.methods import both, fast_moco, mocov3
from fastmoco.optim import AdamW, Schedule
from fastmoco.pairs import SameView
from fastmoco.recipe import Recipe, Row
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


def _with(combine: Combine) -> Recipe:
    return replace(fast_moco, views=both((Divide(2), Encode(), combine, Project(), Predict())))


# Section 5.1: a sample that meets the view it comes from.
same_view = Row(replace(fast_moco, pairs=SameView()), {"linear/top1": 48.5})

# Section 5.4: two, four or all six combinations of a view, every patch equally often.
samples_2 = Row(_with(Combine(2, count=2)), {"linear/top1": 72.6})
samples_4 = Row(_with(Combine(2, count=4)), {"linear/top1": 73.3})
samples_6 = Row(_with(Combine(2, count=6)), {"linear/top1": 73.5})

# Section 5.5: the largest value of each channel instead of the average.
max = Row(_with(Combine(2, Max())), {"linear/top1": 64.6})

# Appendix: the paper does not say which values AdamW has; we take MoCo v3's, with its warm-up of 40 epochs.
_long_warmup = Schedule(warmup=40.0, start=0.0, predictor="scheduled")
adamw = Row(replace(fast_moco, optim=AdamW(), schedule=_long_warmup), {"linear/top1": 71.7})
mocov3_adamw = Row(replace(mocov3, optim=AdamW(), schedule=_long_warmup), {"linear/top1": 69.3})
