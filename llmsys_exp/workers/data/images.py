"""Labelled images: the four files of MNIST and Fashion-MNIST, or a stand-in made on the spot.

The files are in IDX format, as they come (.gz) or unpacked: http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from llmsys_exp.workers.data.records import DataError

STANDIN = "standin:fashion_mnist"
TRAIN, TEST = "train", "t10k"
PARTS = {"images": "images-idx3-ubyte", "labels": "labels-idx1-ubyte"}
DIMENSIONS = {"images": 3, "labels": 1}
UNSIGNED_BYTES = 8
GZIP_MAGIC = b"\x1f\x8b"
STANDIN_IMAGES = {TRAIN: 60_000, TEST: 10_000}
STANDIN_SIDE, STANDIN_CLASSES = 28, 10
COARSE_SIDE, CHUNK_IMAGES = 7, 10_000
OWN_SHARE, NOISE = (0.45, 1.0), 0.35
"""How much of an image is the pattern of its class, and the noise upon it: some images stay hard to tell."""


@dataclass(frozen=True)
class Images:
    """Pixels, one row of bytes an image, and the class of each, as NumPy arrays.

    They stay in main memory whatever the device, and what is measured of tensors is the network's alone.
    """

    pixels: Any
    labels: Any

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Images:
        """Return the first so many images."""
        return self if count is None else Images(self.pixels[:count], self.labels[:count])

    def fingerprint(self) -> str:
        """Return a text that changes when an image or a label does."""
        digest = hashlib.sha256(memoryview(self.pixels))
        digest.update(memoryview(self.labels))
        return digest.hexdigest()[:16]


def missing_files(folder: Path) -> list[str]:
    """Name the files that a folder of images lacks."""
    names = [f"{part}-{name}" for part in (TRAIN, TEST) for name in PARTS.values()]
    return [f"{name}.gz" for name in names if _file(folder, name) is None]


def read_images(folder: Path, part: str) -> Images:
    """Read the images and labels of `train` or `t10k`.

    Raises:
        DataError: for a file that is missing, damaged, cut short or of another kind.
    """
    found = {kind: _read(folder, f"{part}-{name}", DIMENSIONS[kind]) for kind, name in PARTS.items()}
    pixels, labels = found["images"], found["labels"]
    if len(pixels) != len(labels):
        raise DataError(
            f"{len(pixels)} images have {len(labels)} labels",
            where=str(folder),
            do=f"Take both {part} files from the same data set",
        )
    return Images(pixels.reshape(len(pixels), -1), labels.astype("int64"))


def standin_images(part: str, seed: int) -> Images:
    """Make images like those of Fashion-MNIST in shape and number, the same for the same seed.

    Each class has a smooth pattern. An image mixes the pattern of its class with that of another class and
    with noise, so that a perceptron learns to tell most of them apart, and not all.
    """
    import numpy as np
    import torch

    patterns = _patterns(torch.Generator().manual_seed(seed))
    random = torch.Generator().manual_seed(2 * seed + (1 if part == TRAIN else 2))
    pixels, labels = [], []
    for _ in range(STANDIN_IMAGES[part] // CHUNK_IMAGES):
        own, other = torch.randint(STANDIN_CLASSES, (2, CHUNK_IMAGES), generator=random)
        share = torch.rand(CHUNK_IMAGES, 1, generator=random) * (OWN_SHARE[1] - OWN_SHARE[0]) + OWN_SHARE[0]
        mixed = torch.lerp(patterns[other], patterns[own], share)
        mixed += NOISE * torch.randn(mixed.shape, generator=random)
        pixels.append((mixed.clamp_(0, 1) * 255).to(torch.uint8).numpy())
        labels.append(own.numpy())
    return Images(np.concatenate(pixels), np.concatenate(labels))


def _patterns(random: Any) -> Any:
    import torch
    from torch.nn import functional

    coarse = torch.rand(STANDIN_CLASSES, 1, COARSE_SIDE, COARSE_SIDE, generator=random)
    size = (STANDIN_SIDE, STANDIN_SIDE)
    return functional.interpolate(coarse, size=size, mode="bilinear", align_corners=False).flatten(1)


def _file(folder: Path, name: str) -> Path | None:
    return next((folder / one for one in (f"{name}.gz", name) if (folder / one).is_file()), None)


def _read(folder: Path, name: str, dimensions: int) -> Any:
    import numpy as np

    path = _file(folder, name)
    if path is None:
        raise DataError(f"There is no {name}.gz", where=str(folder), do="Put all four files into the folder")
    content = _content(path)
    shape = _shape(content, path, dimensions)
    first = 4 * (1 + dimensions)
    expected = first + prod(shape)
    if len(content) != expected:
        raise DataError(
            f"The file holds {len(content):,} bytes, and its header speaks of {expected:,}",
            where=str(path),
            do="It was cut short or is damaged: fetch it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=first).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
    except EOFError:
        problem = "The file ends too early"
    except (OSError, zlib.error) as error:
        problem = f"The file cannot be read: {error}"
    raise DataError(problem, where=str(path), do="It was cut short or is damaged: fetch it again")


def _shape(content: bytes, path: Path, dimensions: int) -> tuple[int, ...]:
    header = 4 * (1 + dimensions)
    zeros, kind, found = struct.unpack(">HBB", content[:4]) if len(content) >= header else (1, 0, 0)
    if (zeros, kind, found) != (0, UNSIGNED_BYTES, dimensions):
        raise DataError(
            f"This is no IDX file of {dimensions} dimension{'s' if dimensions > 1 else ''} of bytes",
            where=str(path),
            why=f"It begins with {content[:4].hex(' ') or 'nothing'}",
            do="Give the files of MNIST or Fashion-MNIST under their own names",
        )
    return struct.unpack(f">{dimensions}I", content[4:header])
