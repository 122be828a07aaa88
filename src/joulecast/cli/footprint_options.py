"""The flags of a footprint: where the GPUs run, what a kWh costs there and what it emits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import options
from joulecast.errors import InputError

if TYPE_CHECKING:
    from joulecast.scenarios.footprint import Site


#: Money where no other is named.
DEFAULT_CURRENCY = "USD"


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False, rich_help_panel="Footprint")


Price = Annotated[str | None, _option("--price", "MONEY", "Price of a kWh, or a CSV of it over hours.")]
Currency = Annotated[str, typer.Option("--currency", metavar="NAME", help="Of it.", rich_help_panel="Footprint")]
Carbon = Annotated[str | None, _option("--carbon", "G", "g CO2e a kWh, or a CSV of it over hours.")]
Region = Annotated[str | None, _option("--region", "NAME", "Carbon of a region's yearly average, or world.")]
Pue = Annotated[str | None, _option("--pue", "FACTOR", "Energy of the building over its machines' [1].")]
HostW = Annotated[str | None, _option("--host-w", "W", "What the host draws for each GPU [0].")]
HostShare = Annotated[str | None, _option("--host-share", "SHARE", "The same over the GPU's energy [0].")]
Start = Annotated[str | None, _option("--start", "TIME", "When it runs, for tables over hours.")]


def site(
    *,
    price: str | None,
    currency: str,
    carbon: str | None,
    region: str | None,
    pue: str | None,
    host_w: str | None,
    host_share: str | None,
    start: str | None,
    deadline: bool = False,
) -> Site | None:
    """The site that the flags describe; None where none was given.

    With a `deadline` the start has its use even where no table needs it.

    Raises
    ------
    InputError
        For values that can't be read or are out of bounds, tables that can't be used, and a currency of no price.
    """
    if not (currency.isprintable() and 0 < len(currency.strip()) <= 8):
        raise InputError("--currency takes a short name, such as EUR")
    if price is None and currency != DEFAULT_CURRENCY:
        raise InputError("--currency names the money of --price: give that too")
    if deadline and not any(_is_table(given) for given in (price, carbon)):
        start = None
    if all(given is None for given in (price, carbon, region, pue, host_w, host_share, start)):
        return None
    from joulecast.scenarios.footprint import site_of

    return site_of(
        price=_number_or_file("--price", price, "money a kWh", "0.20"),
        currency=currency.strip(),
        carbon=_number_or_file("--carbon", carbon, "g CO2e a kWh", "380"),
        region=region,
        pue=options.real("--pue", pue, "energy over energy", example="1.2") or 1.0,
        host_w=options.real("--host-w", host_w, "W", zero=True, example="100") or 0.0,
        host_share=options.real("--host-share", host_share, "energy over energy", zero=True, example="0.3") or 0.0,
        start=start,
    )


def _number_or_file(flag: str, text: str | None, unit: str, example: str) -> float | Path | None:
    if text is not None and _is_table(text):
        return Path(text)
    return options.real(flag, text, f"{unit} or a .csv file", zero=True, example=example)


def _is_table(text: str | None) -> bool:
    return text is not None and Path(text).suffix.lower() in (".csv", ".tsv", ".txt")
