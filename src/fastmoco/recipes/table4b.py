"""Table 4b: combinatorial patches and multi-crop. 100 epochs, ImageNet linear top-1.

Six crops of 96 px cost what one of 224 px does, so the last rows add one crop of 224 px to Fast-MoCo instead.
"""

from dataclasses import replace

from fastmoco import methods
from fastmoco.recipe import Row, View

mocov3 = Row(methods.mocov3, {"linear/top1": 70.3})
# The paper does not say which part of the image a small crop covers; we take SwAV's, and leave the large crops alone.
_small = View(96, 6, scale=(0.05, 0.14), online=methods.encode)
mocov3_multicrop = Row(replace(methods.mocov3, views=(*methods.mocov3.views, _small)), {"linear/top1": 73.1})
fast_moco = Row(methods.fast_moco, {"linear/top1": 73.5})
# The paper does not say whether the added crop is divided; we take it whole, and divided as a second row.
_whole, _divided = View(online=methods.encode), View(online=methods.patches)
fast_moco_multicrop = Row(replace(methods.fast_moco, views=(*methods.fast_moco.views, _whole)), {"linear/top1": 74.2})
fast_moco_multicrop_divided = Row(
    replace(methods.fast_moco, views=(*methods.fast_moco.views, _divided)), {"linear/top1": 74.2}
)
