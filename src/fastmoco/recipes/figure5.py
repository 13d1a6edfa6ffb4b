"""Figure 5: semi-supervised and COCO results after 100, 200 and 400 epochs.

The paper plots the results; where a point is also in Table 2 or 3, its number is given here.
"""

from dataclasses import replace

from fastmoco import protocols
from fastmoco.methods import fast_moco
from fastmoco.protocols import Protocol
from fastmoco.recipe import Row
from fastmoco.recipes import table2, table3


def _after(epochs: int, evaluation: Protocol) -> Row:
    return Row(replace(fast_moco, epochs=epochs, evaluation=evaluation))


semi_1_100 = _after(100, protocols.semi_1)
semi_1_200 = _after(200, protocols.semi_1)
semi_1_400 = table2.semi_1

semi_10_100 = _after(100, protocols.semi_10)
semi_10_200 = _after(200, protocols.semi_10)
semi_10_400 = table2.semi_10

coco_100 = _after(100, protocols.coco)
coco_200 = _after(200, protocols.coco)
coco_400 = table3.coco
