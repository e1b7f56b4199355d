"""The planner's bookkeeping of activations against the real transformers code, family by family, on the CPU.

    python -m benchmarks.trace_check [FAMILY ...] [--mode MODE ...] [--each]

The real model runs forward and backward on the meta device, through the operators that CUDA would take, while
every storage is counted. Compared are bytes beyond the weights, planned / traced - 1 in percent; exit code 1 when
one differs by more than 1 %. A family takes a few seconds, all of them three minutes. Memory that kernels take
within themselves is not seen, except FlashAttention's, which is added as its source says.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import pandas as pd
import transformers

from .compare import MODES, TOLERANCE, compare
from .configs import CONFIGS

FIGURES = ("parameters", "weight_bytes", "forward_end_bytes", "forward_peak_bytes", "backward_peak_bytes")


def table(families: list[str], modes: list[str]) -> pd.DataFrame:
    """One line a family and mode that transformers offers; errors in percent."""
    lines = []
    for family in families:
        for mode in modes:
            both = compare(family, mode)
            if both is not None:
                planned, traced = both
                errors = {name: 100 * error for name, error in planned.errors(traced).items()}
                line = {"family": family, "mode": mode, **errors}
                lines.append({**line, "traced_peak_bytes": traced.backward_peak_bytes})
    return pd.DataFrame(lines, columns=["family", "mode", *FIGURES, "traced_peak_bytes"])


def by_family(frame: pd.DataFrame) -> pd.DataFrame:
    """Worst error of each family over its modes, in percent."""
    worst = frame[list(FIGURES)].abs().groupby(frame["family"], sort=False).max()
    return worst.assign(modes=frame.groupby("family", sort=False).size())


def main() -> int:
    """Print the table; 1 when a figure is off."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: all of {', '.join(CONFIGS)}")
    parser.add_argument("--mode", action="append", choices=[*MODES], help="default: all")
    parser.add_argument("--each", action="store_true", help="print every mode, not the worst of each family")
    args = parser.parse_args()
    unknown = [family for family in args.families if family not in CONFIGS]
    if unknown:
        parser.error(f"no configuration for {', '.join(unknown)}; known: {', '.join(CONFIGS)}")
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")  # of names that later versions drop
    frame = table(args.families or [*CONFIGS], args.mode or [*MODES])
    if frame.empty:
        parser.error("transformers offers none of these modes for these families")
    print((frame.set_index(["family", "mode"]) if args.each else by_family(frame)).round(2).to_string())
    errors = frame[list(FIGURES)].abs().max(axis=1)
    off = int((errors > 100 * TOLERANCE).sum())
    print(f"\n{len(frame)} comparisons, {off} off by more than {TOLERANCE:.0%}; worst {errors.max():.2f} %")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
