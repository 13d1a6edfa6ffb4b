"""Table 7: other methods with and without combinatorial patches. 100 epochs, ImageNet linear top-1.

The paper quotes the rows without patches from their own papers and does not say how it set the others; we run all of
them in Fast-MoCo's setting, so that the patches are the only difference. table1 has the baselines in their own.
"""

from fastmoco import methods
from fastmoco.recipe import Row

byol = Row(methods.byol, {"linear/top1": 66.5})
byol_patches = Row(methods.byol_patches, {"linear/top1": 73.6})
simsiam = Row(methods.simsiam, {"linear/top1": 68.1})
simsiam_patches = Row(methods.simsiam_patches, {"linear/top1": 71.7})
nnclr = Row(methods.nnclr, {"linear/top1": 69.4})
nnclr_patches = Row(methods.nnclr_patches, {"linear/top1": 72.5})
