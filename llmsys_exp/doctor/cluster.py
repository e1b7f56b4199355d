"""What runs on several machines need: Slurm with munge and submitit, Ray, ssh and pdsh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look, output_of
from llmsys_exp.doctor.own import own_packages

_SAY = Reporter("cluster")
_ASK_S = 10


def check(look: Look) -> Iterator[Finding]:
    """Look for the programs; a machine without them is no worse for runs of its own."""
    yield from _slurm()
    here = {name: path is not None for name in ("ssh", "pdsh") for path in [shutil.which(name)]}
    found = [name for name, is_here in here.items() if is_here]
    said = f"launcher.hostfile: {', '.join(found) or 'neither ssh nor pdsh'}"
    if here["ssh"]:
        yield _SAY.ok("ssh", said)
    else:
        yield _SAY.note(
            "ssh", f"{said}; hardware.nodes > 1 needs one of them, or Slurm", "apt install openssh-client"
        )
    if "ray" in own_packages():
        yield _SAY.ok("ray", f"sweep --ray: ray {own_packages()['ray']}")
    else:
        yield _SAY.note("ray", "sweep --ray lacks ray", "pip install 'llmsys-exp[ray]'")


def _slurm() -> Iterator[Finding]:
    programs = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name)]
    if not programs:
        yield _SAY.note("slurm", "No Slurm here: sweep --slurm runs on a login node", "")
        return
    if output_of(["sinfo", "--noheader"], _ASK_S) is None:
        fix = "scontrol ping; systemctl status munge"
        yield _SAY.note(
            "slurm", f"Slurm's programs are here ({', '.join(programs)}), its controller does not answer", fix
        )
    else:
        yield _SAY.ok("slurm", f"Slurm answers ({', '.join(programs)})")
    if shutil.which("munge") and output_of(["munge", "-n"], _ASK_S) is None:
        yield _SAY.note(
            "munge", "munge makes no credential: its daemon is not running", "systemctl start munge"
        )
    if "submitit" not in own_packages():
        yield _SAY.note("submitit", "sweep --slurm lacks submitit", "pip install 'llmsys-exp[slurm]'")
