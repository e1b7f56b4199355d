"""Settings of the launcher plug-in, and what they come to on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.errors import CompactHydraException

from llmsys_exp.sweeps.running.lease import Leases, core_slots, leases_here


@dataclass(frozen=True)
class LaunchOptions:
    """What stands below `hydra.launcher`.

    Attributes:
        gpus_per_job: how many GPUs a job gets; 0: none, and cores in their place. None: one, or cores where
            there are no GPUs.
        jobs: how many at a time at most; None: as many as find GPUs, and one where jobs get cores.
        timeout_s: how long a job may take.
        fail_fast: end the other jobs when one fails.
    """

    gpus_per_job: int | None = None
    jobs: int | None = None
    timeout_s: float | None = None
    fail_fast: bool = False

    def check(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            CompactHydraException: naming the setting.
        """
        for name, value, least in (("gpus_per_job", self.gpus_per_job, 0), ("jobs", self.jobs, 1)):
            if value is not None and value < least:
                raise CompactHydraException(f"hydra.launcher.{name}={value} is below {least}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise CompactHydraException(f"hydra.launcher.timeout_s={self.timeout_s} is no time above 0")


@dataclass(frozen=True)
class Share:
    """What each job gets, and how many jobs run at a time."""

    leases: Leases
    slots: int
    """How many of them a job takes."""
    jobs: int
    hides_gpus: bool


def share_of(options: LaunchOptions) -> Share:
    """Divide this machine.

    Raises:
        CompactHydraException: for more GPUs than there are.
    """
    options.check()
    leases, count = leases_here(), options.gpus_per_job
    gpus = [slot for slot in leases.slots if slot.name.startswith("gpu-")]
    if count is not None and count > len(gpus):
        there = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}" if gpus else "no GPU"
        raise CompactHydraException(
            f"hydra.launcher.gpus_per_job={count}: a job would never start, as this machine offers {there}"
        )
    if gpus and count != 0:
        count = count or 1
        return Share(leases, count, options.jobs or len(gpus) // count, hides_gpus=False)
    jobs = options.jobs or 1
    slots = core_slots()
    # more jobs than cores wait for one each
    return Share(Leases(slots), max(1, len(slots) // jobs), jobs, hides_gpus=bool(gpus))
