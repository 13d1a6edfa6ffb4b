"""Table 2: semi-supervised learning on ImageNet with 1 % and 10 % of the labels, after 400 epochs.

The rates are as printed in the appendix, 5e2 for the classifier; they are the paper's words, not advice.
"""

from dataclasses import replace

from fastmoco import protocols
from fastmoco.recipe import Row
from fastmoco.recipes import table1

semi_1 = Row(replace(table1.fast_moco_400.recipe, evaluation=protocols.semi_1), {"semi/top1": 56.5, "semi/top5": 81.1})
semi_10 = Row(
    replace(table1.fast_moco_400.recipe, evaluation=protocols.semi_10), {"semi/top1": 70.3, "semi/top5": 89.4}
)
