"""Carbon intensity of electricity by region: yearly averages of a table that ships with us, each with its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from joulecast.errors import UnknownNameError

_SOURCES = {
    "OWID": "Our World in Data, from Ember",
    "eGRID": "US EPA eGRID2023",
}

#: Names that people use beside those of the table.
_ALSO = {
    "world": "WORLD",
    "global": "WORLD",
    "uk": "GBR",
    "great britain": "GBR",
    "usa": "USA",
    "us": "USA",
    "korea": "KOR",
    "south korea": "KOR",
    "holland": "NLD",
    "czech republic": "CZE",
    "ivory coast": "CIV",
    "turkiye": "TUR",
    "uae": "ARE",
}


@dataclass(frozen=True)
class Region:
    """Yearly average of the electricity that is generated in a region.

    Attributes
    ----------
    code, name : str
        ISO 3166 code of three letters (``US-CA`` for a state of the US, ``WORLD`` for all), and name.
    g_co2e_per_kwh : float
        [g CO2e/kWh]
    kind : str
        ``lifecycle`` (with fuel supply and the building of plants) or ``direct`` (what leaves the stacks).
    year : int
    source : str
    """

    code: str
    name: str
    g_co2e_per_kwh: float
    kind: str
    year: int
    source: str

    @property
    def label(self) -> str:
        """What the number is, in one line: ``France, yearly average 2023, lifecycle (Our World in Data, ...)``."""
        average = "" if self.code == "WORLD" else ", yearly average"
        return f"{self.name}{average} {self.year}, {self.kind} ({self.source})"


def region(name: str) -> Region:
    """The region of a name or code, in any case: ``France``, ``FR``, ``FRA``, ``US-CA``, ``California``, ``world``.

    Raises
    ------
    UnknownNameError
        If the table has no such region; the nearest names are told.
    """
    by_name = _by_name()
    found = by_name.get(_key(name))
    if found is None:
        names = [one.name for one in regions()] + [one.code for one in regions()]
        raise UnknownNameError("region", name, names)
    return found


@cache
def regions() -> tuple[Region, ...]:
    """All regions of the table, in its order: the world, countries by code, states of the US."""
    return tuple(one for one, _ in _rows())


@cache
def _rows() -> tuple[tuple[Region, str], ...]:
    text = resources.files("joulecast.scenarios").joinpath("grid.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        (
            Region(
                row["code"],
                row["name"],
                float(row["g_co2e_per_kwh"]),
                row["kind"],
                int(row["year"]),
                _SOURCES[row["source"]],
            ),
            row["iso2"],
        )
        for row in csv.DictReader(lines)
    )


@cache
def _by_name() -> dict[str, Region]:
    """By code and by name; where a state of the US shares the name of a country, the country has it."""
    found: dict[str, Region] = {}
    for one, iso2 in _rows():
        short = one.name.removesuffix(", United States")
        for name in (one.code, iso2, one.name, short):
            if name:
                found.setdefault(_key(name), one)
    for name, code in _ALSO.items():
        found.setdefault(_key(name), found[_key(code)])
    return found


def _key(name: str) -> str:
    return " ".join(str(name).lower().replace("_", " ").replace("-", " ").split())
