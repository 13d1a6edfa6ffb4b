"""From the bytes of an image file to RGB pixels, and why that fails."""

import io
import re
import warnings

import numpy as np
import PIL.Image
from jaxtyping import UInt8
from PIL.Image import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

_PIL = re.compile(r"PIL\.")
WHITE_IS_ZERO = 0  # as in scans of film; PIL knows it of 8 bits only


def decode(content: bytes) -> Image:
    """The first frame of an encoded image, as RGB."""
    return load(look(content))


def look(content: bytes | Image) -> Image:
    """What the header tells: size and format. Nothing is decoded."""
    if not isinstance(content, bytes):
        return content
    _hush()
    # No other formats: PIL would start Ghostscript for a PostScript file, whatever it is called.
    return PIL.Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM"))


def load(image: Image, shrink: int = 1) -> Image:
    """The pixels, as RGB. A JPEG is made smaller by `shrink`, of 1, 2, 4 and 8, which spares most of the work."""
    if shrink > 1:
        image.draft(None, (image.width // shrink, image.height // shrink))
    if image.mode == "F":  # PIL would cut off what is beyond 0 to 255, so that pixels from 0 to 1 turn black
        raise ValueError("it has float pixels, of which no one says what is white; save it with 8 or 16 bits")
    if image.mode == "I" and image.format != "PPM":  # of which PIL scales all that has more than 8 bits to 16
        raise ValueError(
            "it has signed or 32-bit pixels, of which no one says what is white; save it with 8 or unsigned 16 bits"
        )
    image.load()
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = PIL.Image.fromarray(_shallow(image))  # where PIL would turn all above 255 white
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy


def _shallow(image: Image) -> UInt8[np.ndarray, "h w"]:
    """The first 8 bits of grey pixels that have more, and which of black and white is 0, by what the file declares.

    The largest pixel says nothing about white, nor does the tag MaxSampleValue, which by the standard is a statistic.
    """
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    (bits,) = tags.get(BITSPERSAMPLE, (16,))
    grey: np.ndarray = (np.asarray(image) >> bits - 8).astype(np.uint8)
    return 255 - grey if tags.get(PHOTOMETRIC_INTERPRETATION) == WHITE_IS_ZERO else grey


def _hush() -> None:
    """Silence what PIL remarks on: a palette, metadata, many pixels. No one could act on it, a million times over."""
    # For the whole process, since threads that decode at the same time would undo each other's filters.
    remarks = (UserWarning, PIL.Image.DecompressionBombWarning)
    if [tuple(each) for each in warnings.filters[:2]] != [("ignore", None, each, _PIL, 0) for each in remarks]:
        for each in reversed(remarks):
            warnings.filterwarnings("ignore", category=each, module=_PIL.pattern)


def why(error: Exception) -> str:
    """Why an image could not be read, in one line."""
    words = re.sub(r" <_io\.BytesIO object at \w+>", "", str(error))
    return " ".join(words.split()) or type(error).__name__
