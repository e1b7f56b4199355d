"""The machines of a job: one, those of a hostfile, or those of a Slurm allocation."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError

LOCALHOST = "127.0.0.1"
SLURM, HOSTFILE = "slurm", "hostfile"
_HOST_LINE = re.compile(r"(\S+)\s+slots=(\d+)\s*(?:#.*)?")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Nodes:
    """Names of the machines in rank order; none for this one alone."""

    hosts: tuple[str, ...] = ()
    source: str = ""
    """`slurm`, `hostfile`, or nothing."""
    hostfile: str = ""
    master_addr: str = LOCALHOST

    @property
    def count(self) -> int:
        """How many machines."""
        return max(1, len(self.hosts))

    @property
    def is_remote(self) -> bool:
        """Whether another machine takes part."""
        return self.count > 1 or any(not is_this_machine(host) for host in self.hosts)


def find_nodes(config: Config, env: Mapping[str, str]) -> Nodes:
    """Find the machines of a job: in `launcher.hostfile`, else in the Slurm allocation around us.

    Raises:
        UserError: when there are not as many as `hardware.nodes` says.
    """
    wanted, master = config.hardware.nodes, config.launcher.master_addr
    _refuse_to_start_twice(env)
    if config.launcher.hostfile is not None:
        path = Path(config.launcher.hostfile).expanduser().absolute()
        hosts = _hosts_with_slots(path, wanted, config.hardware.gpus_per_node)
        return Nodes(hosts, HOSTFILE, str(path), master or _address(hosts[0]))
    listed = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if wanted == 1:
        _refuse_outside(listed, env)
        return Nodes(master_addr=master or LOCALHOST)
    if not listed:
        raise UserError(
            f"This job spans {wanted} machines, and which ones is not known",
            where="hardware.nodes",
            do="Name them in launcher.hostfile=FILE (lines such as `gpu1 slots=4`), start llmsys inside a "
            "Slurm allocation, or set hardware.nodes=1; `llmsys plan` answers for any number",
        )
    hosts = slurm_hosts(listed)
    if len(hosts) < wanted:
        raise UserError(
            f"This job spans {wanted} machines, and the Slurm allocation holds {len(hosts)}: {listed}",
            where="hardware.nodes",
            do=f"Set hardware.nodes={len(hosts)}, or ask Slurm for {wanted} nodes",
        )
    return Nodes(hosts[:wanted], SLURM, "", master or hosts[0])


def read_hostfile(path: Path) -> dict[str, int]:
    """Read lines `NAME slots=NUMBER`, as DeepSpeed's runner does, in their order.

    Raises:
        UserError: with the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("The hostfile cannot be read", where=f"launcher.hostfile={path}") from error
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _HOST_LINE.fullmatch(text)
        if match is None or int(match[2]) < 1:
            raise UserError(
                f"{text!r} is no line of a hostfile",
                where=f"{path}:{number}",
                do="Write NAME slots=NUMBER, for example: gpu1 slots=4",
            )
        if match[1] in hosts:
            raise UserError(f"{match[1]} is listed twice", where=f"{path}:{number}")
        hosts[match[1]] = int(match[2])
    if not hosts:
        raise UserError("The hostfile names no machine", where=f"launcher.hostfile={path}")
    return hosts


def slurm_hosts(listed: str) -> tuple[str, ...]:
    """Return the names that a Slurm node list stands for, from `scontrol` where there is one."""
    if shutil.which("scontrol"):
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode == 0 and done.stdout.split():
            return tuple(done.stdout.split())
    return expand_nodelist(listed)


def expand_nodelist(listed: str) -> tuple[str, ...]:
    """Write out a node list such as `gpu[01-03,07],login1`.

    >>> expand_nodelist("gpu[09-11],a1")
    ('gpu09', 'gpu10', 'gpu11', 'a1')
    """
    # commas within brackets do not end a name
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return tuple(name for part in parts for name in _expand(part.strip()))


def is_this_machine(host: str) -> bool:
    """Whether a name means the machine we run on."""
    own = socket.gethostname()
    return host in ("localhost", LOCALHOST, own, own.partition(".")[0], socket.getfqdn())


def _expand(part: str) -> list[str]:
    match = _BRACKETS.search(part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    return [name for number in _numbers(match[1]) for name in _expand(f"{before}{number}{after}")]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not dash:
            numbers.append(first)
            continue
        # leading zeros belong to the name
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _hosts_with_slots(path: Path, wanted: int, ranks: int) -> tuple[str, ...]:
    slots = read_hostfile(path)
    if len(slots) < wanted:
        raise UserError(
            f"This job spans {wanted} machines, and the hostfile names {len(slots)}",
            where=str(path),
            do=f"Add a line for each machine, or set hardware.nodes={len(slots)}",
        )
    hosts = tuple(slots)[:wanted]
    for host in hosts:
        if slots[host] < ranks:
            raise UserError(
                f"This job wants {ranks} GPUs of each machine, and {host} has {slots[host]} slots",
                where=str(path),
                do=f"Set hardware.gpus_per_node={slots[host]}, or mend the line",
            )
    return hosts


def _address(host: str) -> str:
    return LOCALHOST if host == "localhost" else host


def _refuse_outside(listed: str | None, env: Mapping[str, str]) -> None:
    """`salloc` leaves its shell where it was, so that a job would run on the login node."""
    # Slurm sets the name in whatever it starts itself, on a node that may have another one in its list
    if not listed or "SLURMD_NODENAME" in env:
        return
    hosts = slurm_hosts(listed)
    if not any(is_this_machine(host) for host in hosts):
        raise UserError(
            f"Slurm has given {listed} to this job, and this machine is {socket.gethostname()}",
            where=f"SLURM_JOB_ID={env.get('SLURM_JOB_ID', '?')}",
            why="It would run here, outside of the allocation",
            do=f"Go there first: srun --nodes=1 --ntasks=1 --nodelist={hosts[0]} --pty bash; or use sbatch",
        )


def _refuse_to_start_twice(env: Mapping[str, str]) -> None:
    """Under `srun`, every task would start the whole job."""
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise UserError(
            f"llmsys was itself started {tasks} times by srun",
            where=f"SLURM_PROCID={env.get('SLURM_PROCID', '?')}",
            why="It starts the ranks on every machine by itself",
            do="Start it once: in the batch script, without srun",
        )
