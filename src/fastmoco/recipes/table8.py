"""Table 8: batch size. 100 epochs, ImageNet linear top-1.

The paper does not say which rates; we scale them with the batch.
"""

from dataclasses import replace

from fastmoco.methods import fast_moco
from fastmoco.optim import SGD
from fastmoco.recipe import Row

b1024 = Row(replace(fast_moco, batch=1024, optim=SGD(lr=0.2)), {"linear/top1": 73.6})
b512 = Row(fast_moco, {"linear/top1": 73.5})
b256 = Row(replace(fast_moco, batch=256, optim=SGD(lr=0.05)), {"linear/top1": 72.5})
