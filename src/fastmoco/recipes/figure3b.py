"""Figure 3b: a grid of m x m patches, combined n at a time. 20 epochs.

The paper plots the results and prints no number. 224 does not divide by 3, and the paper does not say what it did; we
take views of 225 px there. Nine patches of 75 px cost 4.95 G multiply-adds, four of 112 px 4.30 G, a whole view 4.09 G.
"""

from dataclasses import replace

from fastmoco.methods import both
from fastmoco.recipe import Row
from fastmoco.recipes.figure3a import short
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


def _grid(m: int, n: int) -> Row:
    size = 225 if m == 3 else 224
    return Row(replace(short, views=both((Divide(m), Encode(), Combine(n), Project(), Predict()), size=size)))


m1_n1 = _grid(1, 1)

m2_n1 = _grid(2, 1)
m2_n2 = _grid(2, 2)
m2_n3 = _grid(2, 3)
m2_n4 = _grid(2, 4)

m3_n1 = _grid(3, 1)
m3_n2 = _grid(3, 2)
m3_n3 = _grid(3, 3)
m3_n4 = _grid(3, 4)
m3_n5 = _grid(3, 5)
m3_n6 = _grid(3, 6)
m3_n7 = _grid(3, 7)
m3_n8 = _grid(3, 8)
m3_n9 = _grid(3, 9)
