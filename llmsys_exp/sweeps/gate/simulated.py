"""Verdicts of points whose family no formula knows: each plan is simulated once."""

from __future__ import annotations

from collections.abc import Callable

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.plan.unknown import NotForecast, settle_unknown
from llmsys_exp.sweeps.gate.disk import free_bytes, most_bytes
from llmsys_exp.sweeps.gate.outcome import Outcome, figures_of, refused
from llmsys_exp.sweeps.gate.playing import FITS, NEAR, NO_FIT, Size, at_size
from planner.forecast import SIMULATE, Forecast
from planner.units import GIB

NOT_FORECAST = "not forecast"


class Progress:
    """Tells which job is simulated now, and of how many."""

    def __init__(self, tell: Callable[[str], None], total: int) -> None:
        self._tell, self._total, self._done = tell, total, 0

    def next(self, settings: str) -> None:
        """Tell of the next one by what is its own."""
        self._done += 1
        self._tell(f"Simulating {self._done} of {self._total}: {settings or 'the settings of all points'}")


def not_simulated() -> Outcome:
    """A point that is left to its own start."""
    return Outcome(True, False, figures_of(NEAR, "gpu", None, None, SIMULATE))


def judge_simulated(config: Config, size: Size, simulations: Simulations) -> Outcome:
    """Plan one point by simulations; what cannot be simulated does not pass, and says why.

    Args:
        config: the point.
        size: its sizes.
        simulations: runs them.
    """
    try:
        found = settle_unknown(at_size(config, size), simulations)
    except NotForecast as error:
        return _not_forecast(str(error)) if error.startable else refused(str(error))
    except UserError as error:
        return refused(str(error))
    if found.simulation is None or found.verdict is None:
        return _not_forecast(f"nothing is forecast: {found.why_not}")
    forecast, verdict = found.simulation.forecast, found.verdict
    host_gib, label = config.hardware.host_memory_gib, verdict.label
    if host_gib is not None and verdict.fits and forecast.host_peak_bytes > host_gib * GIB:
        figures = figures_of(NO_FIT, "host", forecast.host_peak_bytes, host_gib * GIB, SIMULATE)
        return Outcome(False, False, figures)
    needed, free = most_bytes(config, forecast.disk), free_bytes(config.paths.outputs)
    if verdict.fits and needed > free:
        return Outcome(False, False, figures_of(NO_FIT, "disk", needed, free, SIMULATE))
    figures = figures_of(label, "gpu", forecast.required_bytes, verdict.budget_bytes, SIMULATE)
    return Outcome(verdict.fits, label == FITS, figures | _share(forecast))


def _not_forecast(why: str) -> Outcome:
    """A point that could start; the gate lets it pass under the policy `warn`."""
    return Outcome(False, False, {"label": NOT_FORECAST, "not_forecast": why})


def _share(forecast: Forecast) -> dict[str, float]:
    """What a job takes of a card and of main memory, for those who run several at once."""
    return {
        "device_gib": round((forecast.required_bytes + forecast.device_extra_bytes) / GIB, 3),
        "host_gib": round(forecast.host_peak_bytes / GIB, 3),
    }
