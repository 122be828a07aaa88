"""Money and carbon of energy: what a site adds to its GPUs, what a kWh costs there, and what it emits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import number
from joulecast.errors import InputError, shortened
from joulecast.scenarios.grid import region as region_of
from joulecast.scenarios.hours import HourTable, read_hours
from joulecast.scenarios.prediction import Prediction
from joulecast.scenarios.summary import JOULES_PER_KWH

Floats = npt.NDArray[np.float64]

#: Above these a number is a slip of units: oil and lignite plants stay under 1,500 g CO2e/kWh.
_MOST_CARBON, _MOST_PRICE = 5000.0, 1e6
_MOST_PUE, _MOST_HOST_W, _MOST_HOST_SHARE = 10.0, 1e5, 10.0

#: Below this no grid lies: the number may be in kg.
_LITTLE_CARBON = 2.0


@dataclass(frozen=True)
class Site:
    """Where GPUs run: what is drawn beside them, and what a kWh costs and emits.

    Attributes
    ----------
    pue : float
        Power usage effectiveness: energy of the whole building over that of the machines in it, 1 or more.
    host_w : float
        What processors, memory, fans and network of the machine draw for each GPU while it runs. [W]
    host_share : float
        The same as a share of the GPU's energy, on top of it.
    price_per_kwh : float, HourTable or None
        [currency/kWh]
    currency : str
    g_co2e_per_kwh : float, HourTable or None
        [g CO2e/kWh]
    carbon_kind : str
        ``lifecycle``, ``direct`` or ``as given``.
    carbon_source : str
    start : str, datetime, time or None
        When the run starts; without one a table over hours counts by the mean of all its hours.
    """

    pue: float = 1.0
    host_w: float = 0.0
    host_share: float = 0.0
    price_per_kwh: float | HourTable | None = None
    currency: str = "USD"
    g_co2e_per_kwh: float | HourTable | None = None
    carbon_kind: str = "as given"
    carbon_source: str = "given by the user"
    start: str | datetime | time | None = None

    def __post_init__(self) -> None:
        for name, what, least, most, unit in (
            ("pue", "PUE", 1.0, _MOST_PUE, ""),
            ("host_w", "host power a GPU", 0.0, _MOST_HOST_W, "W"),
            ("host_share", "host share", 0.0, _MOST_HOST_SHARE, ""),
            ("price_per_kwh", "price of a kWh", 0.0, _MOST_PRICE, ""),
            ("g_co2e_per_kwh", "carbon intensity", 0.0, _MOST_CARBON, "g CO2e/kWh"),
        ):
            given = getattr(self, name)
            if given is None or isinstance(given, HourTable):
                continue
            value = number(given, what, unit)
            if not least <= value <= most:
                raise InputError(
                    f"{what} must be between {least:g} and {most:g}{f' {unit}' * bool(unit)}, got {value:g}"
                )
            object.__setattr__(self, name, value)
        if not (isinstance(self.currency, str) and self.currency.isprintable() and 0 < len(self.currency.strip()) <= 8):
            raise InputError("currency takes a short name, such as EUR")
        tables = [one for one in (self.price_per_kwh, self.g_co2e_per_kwh) if isinstance(one, HourTable)]
        if self.start is not None:
            if not tables:
                raise InputError("a start time changes nothing without a table over hours of price or carbon")
            for table in tables:
                table.seconds_of(self.start)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not counted, and what else a reader should know."""
        found: list[str] = []
        left_out = [] if self.host_w or self.host_share else ["the host machine (--host-w, --host-share)"]
        left_out += [] if self.pue > 1.0 else ["the building's cooling and supply (--pue)"]
        if left_out:
            found.append(f"not counted: {', '.join(left_out)}")
        for what, rate in (("price", self.price_per_kwh), ("carbon", self.g_co2e_per_kwh)):
            if isinstance(rate, HourTable) and self.start is None:
                found.append(f"no start time (--start): the {what} is the mean of all hours of {rate.name}")
        little = self.g_co2e_per_kwh
        if isinstance(little, float) and 0 < little < _LITTLE_CARBON and self.carbon_kind == "as given":
            found.append(f"{little:g} g CO2e/kWh is less than grids have: if it is kg, give {little * 1000:g}")
        return tuple(found)


@dataclass(frozen=True)
class Footprint:
    """Energy of a site, its price and its carbon; each an array of the shape asked for, or a number.

    Attributes
    ----------
    gpu_j, host_j, building_j, energy_j : ndarray
        Of the GPUs, of their host machines, what the building adds, and all three. [J]
    cost : ndarray or None
        In `currency`.
    price_per_kwh : ndarray or None
        Mean over the run. [currency/kWh]
    carbon_g_co2e : ndarray or None
        [g CO2e]
    g_co2e_per_kwh : ndarray or None
        Mean over the run. [g CO2e/kWh]
    currency, carbon_kind, carbon_source : str
    notes : tuple of str
    """

    gpu_j: Floats
    host_j: Floats
    building_j: Floats
    energy_j: Floats
    cost: Floats | None
    price_per_kwh: Floats | None
    carbon_g_co2e: Floats | None
    g_co2e_per_kwh: Floats | None
    currency: str
    carbon_kind: str
    carbon_source: str
    notes: tuple[str, ...]

    @property
    def energy_kwh(self) -> Floats:
        """All energy. [kWh]"""
        return self.energy_j / JOULES_PER_KWH


def checked_site(site: Site | None) -> Site:
    """The site that is given; one that adds nothing where none is.

    Raises
    ------
    InputError
        For anything else.
    """
    if site is None:
        return Site()
    if not isinstance(site, Site):
        raise InputError(f"site takes a joulecast.scenarios.footprint.Site, not {shortened(repr(site), 40)}")
    return site


def account(energy_j: Any, time_s: Any, site: Site, *, gpu_count: Any = 1, offset_s: Any = 0.0) -> Footprint:
    """Energy, money and carbon of runs at a site; arrays broadcast.

    Parameters
    ----------
    energy_j : array_like
        Of all GPUs of each run. [J]
    time_s : array_like
        How long each run takes. [s]
    site : Site
    gpu_count : array_like
        GPUs of each run, each with its `Site.host_w`.
    offset_s : array_like
        How long after `Site.start` each run starts. [s]

    Returns
    -------
    Footprint

    Raises
    ------
    InputError
        For energies or times that are negative or not finite, and for runs that leave a table of dates.

    Notes
    -----
    ``energy = (gpu (1 + share) + host_w x gpus x time) x PUE``. The energy is spread evenly over the run, so that a
    rate that changes by the hour counts by its mean over it.
    """
    energy = np.asarray(energy_j, dtype=np.float64)
    length = np.asarray(time_s, dtype=np.float64)
    for what, values in (("energy", energy), ("time", length)):
        if values.size and not (np.isfinite(values).all() and values.min() >= 0):
            raise InputError(f"{what} must be finite and not negative to have a footprint")
    try:
        np.broadcast_shapes(energy.shape, length.shape, np.shape(gpu_count), np.shape(offset_s))
    except ValueError:
        raise InputError(
            f"energies of shape {energy.shape}, times of {length.shape} and GPU counts of {np.shape(gpu_count)} do not "
            "go together: give one each, or as many of all"
        ) from None
    host = energy * site.host_share + site.host_w * np.asarray(gpu_count, dtype=np.float64) * length
    building = (site.pue - 1.0) * (energy + host)
    total = energy + host + building
    price = _mean_rate(site.price_per_kwh, site, length, offset_s)
    carbon = _mean_rate(site.g_co2e_per_kwh, site, length, offset_s)
    kwh = total / JOULES_PER_KWH
    return Footprint(
        gpu_j=(energy + np.zeros_like(total))[()],
        host_j=(host + np.zeros_like(total))[()],
        building_j=building[()],
        energy_j=total[()],
        cost=None if price is None else np.asarray(kwh * price)[()],
        price_per_kwh=None if price is None else price[()],
        carbon_g_co2e=None if carbon is None else np.asarray(kwh * carbon)[()],
        g_co2e_per_kwh=None if carbon is None else carbon[()],
        currency=site.currency,
        carbon_kind=site.carbon_kind,
        carbon_source=site.carbon_source,
        notes=site.notes,
    )


def footprint(
    source: Prediction | Any,
    *,
    time_s: Any = None,
    gpu_count: Any = None,
    price: float | str | Path | HourTable | None = None,
    currency: str = "USD",
    carbon: float | str | Path | HourTable | None = None,
    region: str | None = None,
    pue: float = 1.0,
    host_w: float = 0.0,
    host_share: float = 0.0,
    start: str | datetime | time | None = None,
) -> Footprint:
    """Money and carbon of a prediction, or of energies.

    Parameters
    ----------
    source : Prediction or array_like
        A prediction, or energies of all GPUs. [J]
    time_s : array_like, optional
        With energies: how long they took; needed for `host_w` and for tables over hours. [s]
    gpu_count : array_like, optional
        With energies: how many GPUs, for `host_w`; default 1.
    price : float, path or HourTable, optional
        Of a kWh; a path names a table over hours (`joulecast.scenarios.hours.read_hours`).
    currency : str
    carbon : float, path or HourTable, optional
        Carbon intensity, or a table of it over hours. [g CO2e/kWh]
    region : str, optional
        A region of the shipped table of yearly averages, in place of `carbon`; ``"world"`` for the world average.
        Without `carbon` and `region` no carbon is told.
    pue, host_w, host_share, start
        As in `Site`.

    Returns
    -------
    Footprint

    Raises
    ------
    InputError
        For numbers out of bounds, an unknown region, a table that can't be read or does not cover the run.
    """
    site = site_of(
        price=price, currency=currency, carbon=carbon, region=region, pue=pue, host_w=host_w, host_share=host_share,
        start=start,
    )  # fmt: skip
    if isinstance(source, Prediction):
        if time_s is not None or gpu_count is not None:
            raise InputError("time_s and gpu_count go with energies; a prediction has its own")
        return account(source.energy_j, source.time_s, site, gpu_count=source.gpu_count)
    hourly = any(isinstance(one, HourTable) for one in (site.price_per_kwh, site.g_co2e_per_kwh))
    if time_s is None and (site.host_w or (hourly and site.start is not None)):
        raise InputError("host power and tables over hours need time_s: how long the energy took")
    return account(
        _numbers(source, "energy"), 0.0 if time_s is None else _numbers(time_s, "time"), site,
        gpu_count=1 if gpu_count is None else _gpus(gpu_count),
    )  # fmt: skip


def site_of(
    *,
    price: float | str | Path | HourTable | None = None,
    currency: str = "USD",
    carbon: float | str | Path | HourTable | None = None,
    region: str | None = None,
    pue: float = 1.0,
    host_w: float = 0.0,
    host_share: float = 0.0,
    start: str | datetime | time | None = None,
) -> Site:
    """A `Site` from what `footprint` takes: files read, the region looked up."""
    if carbon is not None and region is not None:
        raise InputError("give carbon (a number or a table) or a region, not both")
    kind, source = "as given", "given by the user"
    intensity = _rate(carbon, "carbon", "g CO2e/kWh", 0.0, _MOST_CARBON)
    if region is not None:
        found = region_of(region)
        intensity, kind, source = found.g_co2e_per_kwh, found.kind, found.label
    elif isinstance(intensity, HourTable):
        source = intensity.name
    # Prices on an exchange fall below zero for hours; a contract's price does not.
    rate = _rate(price, "price", f"{shortened(currency, 8)}/kWh", -_MOST_PRICE, _MOST_PRICE)
    return Site(
        pue=pue, host_w=host_w, host_share=host_share, price_per_kwh=rate, currency=currency,
        g_co2e_per_kwh=intensity, carbon_kind=kind, carbon_source=source, start=start,
    )  # fmt: skip


def _rate(
    given: float | str | Path | HourTable | None, what: str, unit: str, least: float, most: float
) -> float | HourTable | None:
    if given is None or isinstance(given, HourTable):
        return given
    if isinstance(given, str | Path):
        return read_hours(given, what, unit, least=least, most=most)
    return given


def _mean_rate(rate: float | HourTable | None, site: Site, time_s: Floats, offset_s: Any) -> Floats | None:
    if rate is None:
        return None
    if isinstance(rate, HourTable):
        if site.start is None:
            return np.asarray(rate.whole_mean())
        return rate.mean(rate.seconds_of(site.start) + np.asarray(offset_s, dtype=np.float64), time_s)
    return np.asarray(rate)


def _gpus(values: Any) -> Floats:
    found = _numbers(values, "gpu_count")
    if found.size and not found.min() >= 1:
        raise InputError(f"gpu_count must be 1 or more, got {found.min():g}")
    return found


def _numbers(values: Any, what: str) -> Floats:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} must be numbers, got {shortened(values, 40)!r}") from None
    if found.size and not math.isfinite(float(found.sum())):
        raise InputError(f"{what} must be finite")
    return found
