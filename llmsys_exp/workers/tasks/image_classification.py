"""A perceptron that learns to name the class of an image."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.data.images import TEST, TRAIN, Images, read_images, standin_images
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.load import torch_dtype
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks.base import Sizes

EVALUATED_AT_ONCE = 1000


class ImageClassification:
    """Examples are numbers of images; a batch is cut out of one tensor, and no image is ever an object."""

    unit = "image"

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks, self._config = job, ranks, job.config
        data = job.config.data
        self._train = self._read(TRAIN, data.limit)
        self._test = self._read(TEST, data.heldout_limit) if job.config.training.evaluate else None
        self.examples: Sequence[int] = range(len(self._train))
        self.heldout: Sequence[int] = range(len(self._test) if self._test else 0)
        self.fingerprint = self._train.fingerprint()

    def build(self) -> Any:
        """Build the network with random weights, the same on every rank."""
        from llmsys_exp.workers.models.perceptron import Perceptron

        return Perceptron(self._config.model.layers).to(torch_dtype(self._config.training.dtype))

    def collate(self, examples: Sequence[int]) -> dict[str, Any]:
        """Cut the images out; pixels stay bytes until they are on the device."""
        import torch

        rows, train = list(examples), self._train
        return {
            "pixels": torch.from_numpy(train.pixels[rows]),
            "labels": torch.from_numpy(train.labels[rows]),
        }

    def sizes(self, numbers: Sequence[int]) -> Sizes:
        """Count images, of which none attends to another."""
        return Sizes(targets=len(numbers), tokens=len(numbers))

    def loss(self, engine: Any, batch: Mapping[str, Any], targets: float) -> Any:
        """Sum over the images, divided by `targets`."""
        return engine(**batch, targets=targets)

    def evaluate(self, model: Any, name: str) -> dict[str, Any] | None:
        """Measure loss and accuracy on the test images, shared out among the ranks."""
        import torch

        if self._test is None:
            return None
        began = time.monotonic()
        # every rank runs as often as the others: sharded weights are gathered by all of them together
        each = -(-len(self._test) // self._ranks.world_size)
        mine = slice(self._ranks.rank * each, (self._ranks.rank + 1) * each)
        pixels, labels = torch.from_numpy(self._test.pixels[mine]), torch.from_numpy(self._test.labels[mine])
        loss = right = 0.0
        with torch.no_grad():
            for at in range(0, each, EVALUATED_AT_ONCE):
                part = slice(at, at + EVALUATED_AT_ONCE)
                scores = model(pixels[part].to(self._ranks.device)).float().cpu()
                loss += float(torch.nn.functional.cross_entropy(scores, labels[part], reduction="sum"))
                right += int((scores.argmax(-1) == labels[part]).sum())
                events.progress(f"{name}: accuracy", min(each, part.stop), each, unit="image")
        total, recognised = self._ranks.total(loss, right)
        count = len(self._test)
        figures = {"loss": total / count, "score_name": "accuracy", "score": recognised / count}
        return {**figures, "rows": count, "seconds": round(time.monotonic() - began, 3)}

    def save(self, model: Any) -> None:
        """Write weights and widths as one folder that is whole or absent."""
        import deepspeed
        from safetensors.torch import save_file

        weights: dict[str, Any] = {}
        sharded = [one for one in model.parameters() if hasattr(one, "ds_id")]
        with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
            if self._ranks.is_first:
                weights = {name: one.detach().cpu().clone() for name, one in model.named_parameters()}
        if self._ranks.is_first:
            with whole_folder(self._job.paths.perceptron) as folder:
                save_file(weights, folder / "model.safetensors")
                write_json(folder / "config.json", {"kind": "mlp", "layers": self._config.model.layers})

    def describe(self) -> dict[str, Any]:
        """Return how many images there are and what tells them from others."""
        test = {} if self._test is None else {"test_images": len(self._test)}
        return {"examples": len(self._train), **test, "fingerprint": self.fingerprint}

    def _read(self, part: str, count: int | None) -> Images:
        folder, layers = self._job.resolved.train_file, self._config.model.layers
        found = standin_images(part, self._config.seed) if folder is None else read_images(folder, part)
        width, classes = found.pixels.shape[1], int(found.labels.max()) + 1
        if width != layers[0]:
            raise DataError(
                f"The images have {width} pixels, and the first layer takes {layers[0]}",
                where="model.layers",
                do=f"Set model.layers=[{width},...]",
            )
        if classes > layers[-1]:
            raise DataError(
                f"The images are of {classes} classes, and the last layer tells {layers[-1]} apart",
                where="model.layers",
                do=f"Set model.layers=[...,{classes}]",
            )
        return found.first(count)
