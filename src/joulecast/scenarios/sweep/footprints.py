"""Money and carbon of the points of a sweep, where its site has a price or a carbon intensity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.scenarios.footprint import Site, account


def footprint_figures(site: Site) -> tuple[str, ...]:
    """Names of the figures that a site adds to those of each point."""
    money = ("cost",) if site.price_per_kwh is not None else ()
    carbon = ("carbon_g_co2e",) if site.g_co2e_per_kwh is not None else ()
    return (*money, *carbon)


def add_footprint(columns: Mapping[str, npt.NDArray[Any]], rows: Any, site: Site) -> None:
    """Write the figures of `footprint_figures` into `columns` at `rows` (indices or mask)."""
    names = footprint_figures(site)
    if names and np.size(rows):
        energy_j, time_s, gpus = (columns[name][rows] for name in ("energy_j", "time_s", "gpu_count"))
        counted = account(energy_j, time_s, site, gpu_count=gpus)
        for name in names:
            columns[name][rows] = getattr(counted, name)
