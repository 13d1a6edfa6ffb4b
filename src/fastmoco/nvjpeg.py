"""JPEGs decoded and cut on a GPU, by nvJPEG as torchvision has it; where that fails, by PIL."""

import io
import warnings
from dataclasses import replace

import PIL.Image
import torch
from jaxtyping import UInt8
from torch import Tensor

from fastmoco.crop import resample
from fastmoco.cuts import Batch, Cuts, Left

BLOCK = 64  # images that are decoded and cut at once; as none is larger than LARGEST, they take 1.5 GiB at most
GRAIN = 64  # sides of a block are multiples of it, so that memory is asked for in few sizes


class Decoder:
    """Makes the crops that workers have left to the device."""

    def __init__(self, cuts: Cuts, device: torch.device) -> None:
        self.cuts = cuts
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.user = torch.cuda.current_stream(device)
            self.device = self.stream.device  # with its number, which another thread would not know
        _try(self.device)

    def __call__(self, batch: Batch) -> Batch:
        if batch.left is None:
            return batch
        # nvJPEG writes from a stream of its own, at once, into memory that is free only after what the current stream
        # has yet to do. In one that no one else uses, and that is waited for, nothing is left to do.
        with torch.cuda.stream(self.stream):
            made = self._fill(batch, batch.left)
        if self.stream is not None:
            self.stream.synchronize()
            for part in made.parts:
                part.record_stream(self.user)
        return made

    def _fill(self, batch: Batch, left: Left) -> Batch:
        files = torch.split(left.content, left.lengths)
        # Images of like shapes go together, so that little room is wasted.
        like = sorted(range(len(files)), key=(left.sizes // GRAIN).tolist().__getitem__)
        places = sorted({*range(len(batch.index))} - {*left.places})
        made, bad = [[part.to(self.device) for part in batch.parts]], dict(batch.bad)
        for start in range(0, len(like), BLOCK):
            block = like[start : start + BLOCK]
            if self.stream is not None:
                self.stream.synchronize()  # or this block would be written where the one before is still being cut
            crops, failed = self._cut([files[place] for place in block], left, block)
            for row in failed:
                place = left.places[block[row]]
                bad |= self._replace(row, crops, left.step, int(batch.index[place]))
            made.append(crops)
            places += [left.places[place] for place in block]
        order = torch.tensor(places).argsort().to(self.device)
        parts = [torch.cat(parts, 1)[:, order].contiguous() for parts in zip(*made, strict=True)]
        return replace(batch, parts=parts, bad=bad, left=None)

    def _cut(
        self, files: list[UInt8[Tensor, " _"]], left: Left, block: list[int]
    ) -> tuple[list[UInt8[Tensor, "_ n 3 _ _"]], list[int]]:
        """For each view the crops of these files, and which of them cannot be decoded: their crops hold anything."""
        sizes, views = left.sizes[block], self.cuts.draws.views
        width, height = (-(-side // GRAIN) * GRAIN for side in sizes.amax(0).tolist())
        album = torch.zeros(len(files), 3, height, width, dtype=torch.uint8, device=self.device)
        failed = []
        for row, (image, (w, h)) in enumerate(zip(decode(files, self.device), sizes.tolist(), strict=True)):
            if image is not None and image.shape == (3, h, w):
                album[row, :, :h, :w] = image
            else:
                failed.append(row)
        where = torch.split(left.where[:, block].to(self.device), [view.count for view in views])
        crops = [
            torch.stack([resample(album, box, view).mul_(255).round_().byte() for box in boxes])
            for boxes, view in zip(where, views, strict=True)
        ]
        return crops, failed

    def _replace(self, row: int, crops: list[UInt8[Tensor, "_ n 3 _ _"]], step: int, number: int) -> dict[int, str]:
        """Crops by PIL, of this image or of another in its place; and why."""
        others, bad = self.cuts.again(step, number)
        for stack, other in zip((stack for part in crops for stack in part), others, strict=True):
            stack[row] = torch.tensor(other, device=self.device).permute(2, 0, 1)
        return bad


def decode(files: list[UInt8[Tensor, " _"]], device: torch.device) -> list[UInt8[Tensor, "3 _ _"] | None]:
    """JPEGs as the device's decoder has them; None for one that it refuses."""
    from torchvision.io import ImageReadMode, decode_jpeg

    # A warning that asks for a library few have yet. For the whole process, as threads would undo each other's filters.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torchvision\.io")
    try:
        return list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # which does not say for which of them
        return [None] if len(files) == 1 else [image for file in files for image in decode([file], device)]


def _try(device: torch.device) -> None:
    """Refuse a torchvision that cannot do it, or PIL would decode file after file."""
    stream = io.BytesIO()
    PIL.Image.new("RGB", (16, 16)).save(stream, "JPEG")
    if decode([torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)], device) == [None]:
        raise ValueError("--decode gpu: this torchvision has no nvJPEG; install one for CUDA, or leave it out")
