"""`python -m fastmoco` is the same as `fastmoco`, which is what torchrun needs."""

from fastmoco.cli import main
from fastmoco.ending import parted

with parted():
    main()
