"""The footprint of a `Prediction` in its JSON, CSV and page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joulecast.reports import text
from joulecast.reports.tables import Facts
from joulecast.scenarios import summary
from joulecast.scenarios.footprint import Footprint, Site, account
from joulecast.scenarios.hours import HourTable
from joulecast.scenarios.prediction import PhasePrediction, Prediction


def phases(prediction: Prediction) -> Iterator[tuple[PhasePrediction, float]]:
    """Each phase and how long after the start it begins. [s]"""
    begins_s = 0.0
    for phase in prediction.phases:
        yield phase, begins_s
        begins_s += phase.time_s


def figures(part: Prediction | PhasePrediction, site: Site, gpu_count: int, offset_s: float = 0.0) -> dict[str, Any]:
    """Energy, money and carbon of the whole or a phase, by names with units; bounds follow those of the energy."""
    found = account([part.energy_j, *part.intervals["energy_j"]], part.time_s, site, gpu_count=gpu_count,
                    offset_s=offset_s)  # fmt: skip
    rows: dict[str, Any] = {"site_energy_j": float(found.energy_j[0])}
    for name, values in (("cost", found.cost), ("carbon_g_co2e", found.carbon_g_co2e)):
        if values is not None:
            lower, upper = sorted(values[1:].tolist())
            rows |= {name: float(values[0]), f"{name}_lower": lower, f"{name}_upper": upper}
            rows[f"{name}_per_million_tokens"] = per_million(part, float(values[0]))
    if found.price_per_kwh is not None:
        rows |= {"currency": site.currency, "price_per_kwh": float(found.price_per_kwh)}
    if found.g_co2e_per_kwh is not None:
        rows["g_co2e_per_kwh"] = float(found.g_co2e_per_kwh)
    return rows


def of_prediction(prediction: Prediction, site: Site) -> Footprint:
    """Footprint of all phases together."""
    return account(prediction.energy_j, prediction.time_s, site, gpu_count=prediction.gpu_count)


def per_million(part: Prediction | PhasePrediction, figure: float) -> float:
    """A figure of the whole for a million of its tokens (or images)."""
    return 1e6 * figure * part.energy_per_token_j / part.energy_j


def described(site: Site) -> dict[str, Any]:
    """The site itself, for JSON."""
    return {
        "pue": site.pue,
        "host_w": site.host_w,
        "host_share": site.host_share,
        "price": _rate(site.price_per_kwh),
        "currency": site.currency if site.price_per_kwh is not None else None,
        "carbon": _rate(site.g_co2e_per_kwh),
        "carbon_kind": site.carbon_kind if site.g_co2e_per_kwh is not None else None,
        "carbon_source": site.carbon_source if site.g_co2e_per_kwh is not None else None,
        "start": None if site.start is None else str(site.start),
        "notes": list(site.notes),
    }


def side_headers(site: Site) -> tuple[str, ...]:
    """Headings of `side_cells`."""
    cost = (f"{site.currency}/M",) if site.price_per_kwh is not None else ()
    return cost + (("g CO2e/M",) if site.g_co2e_per_kwh is not None else ())


def side_cells(prediction: Prediction, site: Site) -> list[str]:
    """Money and carbon of a million tokens (or images), where the site has a price and an intensity."""
    found = of_prediction(prediction, site)
    return [
        text.significant(per_million(prediction, float(value)))
        for value in (found.cost, found.carbon_g_co2e)
        if value is not None
    ]


def pieces(prediction: Prediction, site: Site, unit: str) -> list[str]:
    """`side_cells` in words."""
    units = [head.removesuffix("/M") for head in side_headers(site)]
    cells = side_cells(prediction, site)
    return [f"{cell} {name} a million {unit}s" for cell, name in zip(cells, units, strict=True)]


def remarks(site: Site) -> Facts:
    """What a comparison says of the site below its tables."""
    source = [] if site.g_co2e_per_kwh is None else [f"carbon: {site.carbon_source}"]
    return Facts(tuple(("footprint", (line,)) for line in (*source, *site.notes)), "dim")


def facts(prediction: Prediction, site: Site, one: str) -> Facts:
    """The block of the page; `one` names what is counted by the million: ``token``, ``image``."""
    found = of_prediction(prediction, site)
    total = float(found.energy_j)
    parts = [("GPUs", found.gpu_j), ("host", found.host_j), ("building", found.building_j)]
    made_of = ", ".join(f"{name} {text.percent(float(value) / total)}" for name, value in parts if value > 0)
    items: list[tuple[str, tuple[str, ...]]] = [("  energy", (text.energy(total), f"({made_of})"))]
    bounded = figures(prediction, site, prediction.gpu_count)
    for name, key, rate, unit in (
        ("  cost", "cost", found.price_per_kwh, site.currency),
        ("  carbon", "carbon_g_co2e", found.g_co2e_per_kwh, "g CO2e"),
    ):
        if rate is not None:
            value, interval = bounded[key], (bounded[f"{key}_lower"], bounded[f"{key}_upper"])
            half = text.plus_minus(summary.relative_half_width(abs(value), interval))
            told = [f"{text.significant(value)} {unit} {half}", f"at {text.significant(float(rate))} {unit} a kWh"]
            if prediction.tokens_out:
                told[-1] += ";"
                told.append(f"{text.significant(per_million(prediction, value))} {unit} a million {one}s")
            items.append((name, tuple(told)))
    if found.carbon_g_co2e is not None:
        items.append(("", (site.carbon_source,)))
    items += [("", (note,)) for note in found.notes]
    return Facts(tuple(items), title="footprint", label_width=16)


def _rate(rate: float | HourTable | None) -> float | str | None:
    return rate.name if isinstance(rate, HourTable) else rate
