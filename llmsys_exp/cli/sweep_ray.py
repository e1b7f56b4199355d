"""`llmsys sweep ... --ray`: run what is left of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmsys_exp.errors import UserError
from llmsys_exp.report.console import Console
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ray.cluster import check_port, check_sizes, connected
from llmsys_exp.sweeps.ray.options import RayOptions, parse_ray, require_ray
from llmsys_exp.sweeps.running.runner import RunOptions
from llmsys_exp.sweeps.running.size import JobSizes


def check_ray(how: RunOptions) -> RunOptions:
    """Return the options, where Ray can do what they say.

    Raises:
        UserError: when it cannot.
    """
    if how.ray is not None:
        require_ray()
        parse_ray(how.ray)
        for flag, given in (("--slurm", how.slurm is not None), ("--pack", how.pack)):
            if given:
                raise UserError(f"{flag} does not go with --ray", why="Ray's scheduler places the points")
    return how


def check_address(text: str) -> None:
    """Refuse the options of `--ray` where nobody listens at their address; `auto` is looked up by Ray.

    Raises:
        UserError: naming the address.
    """
    check_port(parse_ray(text).address)


def check_cluster(paths: SweepPaths, sweep: Sweep, how: RunOptions) -> None:
    """Refuse now what a driver without a terminal would refuse in its log.

    Raises:
        UserError: when there is no cluster, or none of its nodes has room for a point.
    """
    with _cluster(paths, sweep, how):
        pass


def run_on_ray(paths: SweepPaths, sweep: Sweep, how: RunOptions, console: Console) -> None:
    """Run what is left; hold the lock of the sweep meanwhile.

    Raises:
        UserError: when there is no cluster, or none of its nodes has room for a point.
    """
    from llmsys_exp.sweeps.ray.driver import RayRunner

    with _cluster(paths, sweep, how) as (address, asked):
        console.line(f"Ray at {address} takes the points")
        RayRunner(paths, sweep, how, ray_options=asked, say=console.line).run(address)


@contextmanager
def _cluster(paths: SweepPaths, sweep: Sweep, how: RunOptions) -> Iterator[tuple[str, RayOptions]]:
    asked = parse_ray(how.ray or "")
    sizes = JobSizes(sweep).left(sweep.ledger(paths).states())
    with connected(asked) as address:
        check_sizes(sizes, asked)
        with disk_errors(paths.folder):
            (paths.folder / "ray").mkdir(exist_ok=True)
        yield address, asked
