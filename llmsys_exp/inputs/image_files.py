"""Where the images of a job are: a folder with four files, or made on the spot."""

from __future__ import annotations

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.data_files import similar
from llmsys_exp.workers.data.images import STANDIN, missing_files


def find_images(text: str) -> str | None:
    """Return the folder of the images; None where they are made.

    Raises:
        UserError: when there is no such folder, or a file is not in it.
    """
    if text == STANDIN:
        return None
    folder = shipped_path(text)
    if not folder.is_dir():
        raise UserError(
            "There is no such folder of images",
            where=f"data.train={text}",
            do=f"{similar(folder).rstrip('.')}.  Where none can be had: data=fashion_mnist_standin",
        )
    missing = missing_files(folder)
    if missing:
        raise UserError(
            f"The folder lacks {', '.join(missing)}",
            where=f"data.train={text}",
            do="Put the four files of Fashion-MNIST there under their own names",
        )
    return str(folder.absolute())
