"""Images from files, each damage named, and images made on the spot."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.inputs.image_files import find_images
from llmsys_exp.workers.data import images
from llmsys_exp.workers.data.images import TEST, TRAIN, read_images, standin_images
from llmsys_exp.workers.data.records import DataError

PIXELS, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def idx(values: np.ndarray) -> bytes:
    """The bytes of an IDX file."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write(folder: Path, *, count: int = 6, packed: bool = True) -> None:
    for part in (TRAIN, TEST):
        pixels = np.arange(count * 12, dtype=np.uint8).reshape(count, 3, 4)
        labels = np.arange(count, dtype=np.uint8) % 3
        for name, values in (("images-idx3-ubyte", pixels), ("labels-idx1-ubyte", labels)):
            content = idx(values)
            path = folder / f"{part}-{name}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
def test_files_are_read_packed_and_unpacked(tmp_path: Path, packed: bool) -> None:
    write(tmp_path, packed=packed)
    assert find_images(str(tmp_path)) == str(tmp_path)
    found = read_images(tmp_path, TRAIN)
    assert found.pixels.shape == (6, 12)
    assert found.pixels[1].tolist() == list(range(12, 24))
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(found.first(4)) == 4


def other_kind(folder: Path) -> None:
    (folder / PIXELS).write_bytes((folder / LABELS).read_bytes())


def no_image(folder: Path) -> None:
    (folder / PIXELS).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))


def empty(folder: Path) -> None:
    (folder / LABELS).write_bytes(b"")


def cut_packed(folder: Path) -> None:
    content = (folder / PIXELS).read_bytes()
    (folder / PIXELS).write_bytes(content[: len(content) // 2])


def damaged(folder: Path) -> None:
    content = bytearray((folder / PIXELS).read_bytes())
    content[20:24] = b"abcd"
    (folder / PIXELS).write_bytes(bytes(content))


def cut_unpacked(folder: Path) -> None:
    content = gzip.decompress((folder / PIXELS).read_bytes())
    (folder / PIXELS).write_bytes(gzip.compress(content[:-5]))


def fewer_labels(folder: Path) -> None:
    (folder / LABELS).write_bytes(gzip.compress(idx(np.zeros(5, dtype=np.uint8))))


def gone(folder: Path) -> None:
    (folder / LABELS).unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (other_kind, "no IDX file of 3 dimensions"),
        (no_image, "begins with 89 50 4e 47"),
        (empty, "no IDX file of 1 dimension of bytes"),
        (cut_packed, "ends too early"),
        (damaged, "cannot be read"),
        (cut_unpacked, "holds 83 bytes, and its header speaks of 88"),
        (fewer_labels, "6 images have 5 labels"),
        (gone, "There is no train-labels-idx1-ubyte.gz"),
    ],
)
def test_each_damage_is_named(tmp_path: Path, damage, said: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=said):
        read_images(tmp_path, TRAIN)


def test_a_missing_file_is_named_before_anything_starts(tmp_path: Path) -> None:
    write(tmp_path)
    gone(tmp_path)
    with pytest.raises(UserError, match=r"lacks train-labels-idx1-ubyte\.gz"):
        find_images(str(tmp_path))
    with pytest.raises(UserError, match="no such folder of images"):
        find_images(str(tmp_path / "none"))


def test_the_stand_in_follows_the_seed_and_shares_patterns_between_its_parts(monkeypatch) -> None:
    monkeypatch.setattr(images, "STANDIN_IMAGES", {TRAIN: 600, TEST: 300})
    monkeypatch.setattr(images, "CHUNK_IMAGES", 300)
    train, again, test = standin_images(TRAIN, 1), standin_images(TRAIN, 1), standin_images(TEST, 1)
    assert train.pixels.shape == (600, 784) and train.pixels.dtype == np.uint8
    assert train.fingerprint() == again.fingerprint() != standin_images(TRAIN, 2).fingerprint()
    assert set(train.labels.tolist()) == set(range(10))
    # the nearest mean of the training images names most test images, and not all of them
    means = np.stack([train.pixels[train.labels == one].mean(0) for one in range(10)])
    distances = ((test.pixels[:, None].astype(float) - means) ** 2).sum(-1)
    right = (distances.argmin(1) == test.labels).mean()
    assert 0.7 < right < 0.99
