"""Table 3: object detection on VOC, detection and instance segmentation on COCO, R50-C4.

The paper does not say how long the encoder was pre-trained; we take 400 epochs, as its semi-supervised rows do.
"""

from dataclasses import replace

from fastmoco import protocols
from fastmoco.recipe import Row
from fastmoco.recipes import table1

voc = Row(
    replace(table1.fast_moco_400.recipe, evaluation=protocols.voc),
    {"detect/ap": 57.7, "detect/ap50": 82.7, "detect/ap75": 64.4},
)
coco = Row(
    replace(table1.fast_moco_400.recipe, evaluation=protocols.coco),
    {
        "detect/ap": 39.5,
        "detect/ap50": 59.2,
        "detect/ap75": 42.6,
        "segment/ap": 34.6,
        "segment/ap50": 55.9,
        "segment/ap75": 36.9,
    },
)
