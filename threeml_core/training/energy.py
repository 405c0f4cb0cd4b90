"""Energy of training, measured by codecarbon where it is installed (`pip install codecarbon`)."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from threeml_core.foundation.log import Log


@contextlib.contextmanager
def energy_meter(log: Log) -> Iterator[dict[str, float]]:
    """Yield what holds `energy_kwh` at the end: the energy of this process, GPU included. Empty without codecarbon.

    On a CPU without power counters codecarbon estimates from its rated power and this process's load.
    """
    used: dict[str, float] = {}
    tracker = _tracker()
    if tracker is None:
        yield used
        return
    tracker.start()
    try:
        yield used
    finally:
        try:
            tracker.stop()
            used["energy_kwh"] = float(tracker.final_emissions_data.energy_consumed)
        except Exception as error:  # a meter must not cost a run that has ended
            log(f"codecarbon failed ({type(error).__name__}: {error}); the energy is not recorded")


def _tracker() -> Any:
    os.environ.setdefault("CODECARBON_LOG_LEVEL", "error")
    try:
        from codecarbon import OfflineEmissionsTracker
    except ImportError:
        return None
    logging.getLogger("codecarbon").setLevel(logging.ERROR)
    # the country decides emissions, which are not used
    return OfflineEmissionsTracker(
        country_iso_code="USA", save_to_file=False, log_level="error", tracking_mode="process", allow_multiple_runs=True
    )
