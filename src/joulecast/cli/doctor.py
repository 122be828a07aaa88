"""`joulecast doctor`: versions, extras, GPUs seen, and what is calibrated."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
from typing import Any

import typer

from joulecast.cli import options
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading

#: Extras for working on joulecast itself.
_FOR_DEVELOPERS = {"dev", "docs", "lint", "test"}
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+).*?;.*extra == ['\"]([a-z]+)['\"]")


def doctor(
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Versions, extras, GPUs seen, and what is calibrated."""
    form = chosen_format(json, csv, output)
    options.use_coefficients(coefficients)
    found = examination()
    give(Answer(lambda: _page(found), lambda: found, lambda: found["calibrated"]), form, output)


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(doctor)


def examination() -> dict[str, Any]:
    """What `joulecast doctor --json` prints."""
    from joulecast.meters.clocks import left_behind

    seen, how = gpus_seen()
    return {
        "schema": "joulecast.doctor/1",
        "versions": {
            "joulecast": _version("joulecast"),
            "python": platform.python_version(),
            **{name: _version(name) for name in ("numpy", "polars", "rich", "typer")},
        },
        "platform": platform.platform(),
        "wsl": "microsoft" in platform.release().lower(),
        "extras": extras(),
        "gpus_seen": seen,
        "gpus_seen_by": how,
        "clocks_set": left_behind(),
        "coefficients": own_coefficients(),
        "calibrated": calibrated(),
    }


def own_coefficients() -> dict[str, Any]:
    """The folder of the user's own coefficients, if there is one, and what its files say of where they come from."""
    from joulecast.coefficients import store
    from joulecast.coefficients.users import users_gpus

    folder, names = users_gpus()
    files = []
    for name in names:
        found = store.load(name)
        made = None if found is None else found.calibration
        files.append(
            {
                "gpu": name,
                "rows": 0 if made is None else made.rows,
                "sources": "" if made is None else made.sources,
                "date": "" if made is None else made.date,
                "version": "" if made is None else made.version,
            }
        )
    return {"folder": None if folder is None else str(folder), "gpus": files}


def extras() -> list[dict[str, Any]]:
    """Each extra with what it lacks and the line that installs it."""
    try:
        metadata = importlib.metadata.metadata("joulecast")
        requirements = importlib.metadata.requires("joulecast") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return []
    needs: dict[str, list[str]] = {name: [] for name in metadata.get_all("Provides-Extra") or ()}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match[2] in needs:
            needs[match[2]].append(match[1])
    found = []
    for name in sorted(set(needs) - _FOR_DEVELOPERS):
        missing = [package for package in needs[name] if _version(package) is None]
        line = f"pip install 'joulecast[{name}]'"
        found.append({"extra": name, "installed": not missing, "missing": missing, "install": line})
    return found


def gpus_seen() -> tuple[list[dict[str, str | None]], str]:
    """NVIDIA GPUs of this machine with the name joulecast knows them by, and how they were looked for."""
    names, how = _names_by_nvml(), "nvidia-ml-py"
    if names is None:
        names, how = _names_by_nvidia_smi(), "nvidia-smi"
    if names is None:
        return [], "neither nvidia-ml-py nor nvidia-smi finds a driver"
    return [{"device": name, "gpu": _known_as(name)} for name in names], how


def calibrated() -> list[dict[str, Any]]:
    """GPUs with coefficients of their own, by kernel family."""
    from joulecast.coefficients import store

    rows: list[dict[str, Any]] = []
    for name in store.known():
        coefficients = store.load(name)
        if coefficients is None:
            continue
        families: dict[str, dict[str, Any]] = {}
        for key, fitted in coefficients.time.items():
            family, engine, _ = key.split("/", 2)
            row = families.setdefault(
                family, {"gpu": name, "what": family, "engines": [], "provenance": fitted.provenance, "rows": 0}
            )
            row["engines"] = sorted({*row["engines"], engine})
            row["rows"] += fitted.rows
        rows += families.values()
        if coefficients.power is not None:
            power = coefficients.power
            rows.append(
                {"gpu": name, "what": "power", "engines": [], "provenance": power.provenance, "rows": power.rows}
            )
    return rows


def _page(found: dict[str, Any]) -> list[Block]:
    seen = tuple(f"{one['device']} ({one['gpu'] or 'not in the catalogue'})" for one in found["gpus_seen"])
    installed = [
        (one["extra"], ("installed",) if one["installed"] else (f"missing: {one['install']}",))
        for one in found["extras"]
    ]
    machine = (found["platform"], "under WSL") if found["wsl"] else (found["platform"],)
    none_seen = (f"none seen: {found['gpus_seen_by']} (none is needed)",)
    blocks: list[Block] = [
        Heading(f"joulecast {found['versions']['joulecast']}"),
        Facts(
            (
                (
                    "versions",
                    tuple(f"{name} {version}" for name, version in found["versions"].items() if name != "joulecast"),
                ),
                ("machine", machine),
                ("GPUs here", seen or none_seen),
                *(("clocks set", (_set(one),)) for one in found["clocks_set"]),
            )
        ),
        Heading("extras"),
        Facts(tuple(installed)),
        *_own(found["coefficients"]),
        Heading("calibrated"),
    ]
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for row in found["calibrated"]:
        by_gpu.setdefault(row["gpu"], []).append(row)
    items = tuple((gpu, _families(fitted)) for gpu, fitted in by_gpu.items())
    nothing = (("", ("no GPU: every figure comes from data sheets",)),)
    blocks.append(Facts(items, label_width=24) if items else Facts(nothing, label_width=0))
    return blocks


def _set(one: dict[str, Any]) -> str:
    if one["process"] is not None:
        return f"of {one['device']}, by process {one['process']}"
    return f"of {one['device']}, by a search that was killed: the next one that measures puts them back"


def _own(own: dict[str, Any]) -> list[Block]:
    if own["folder"] is None:
        return []
    items = [("folder", (own["folder"],))]
    items += [
        (one["gpu"], (f"{text.whole(one['rows'])} rows", *filter(None, (one["date"], one["sources"]))))
        for one in own["gpus"]
    ]
    return [Heading("your coefficients"), Facts(tuple(items), label_width=24)]


def _families(fitted: list[dict[str, Any]]) -> tuple[str, ...]:
    from joulecast.scenarios import summary

    by_source: dict[str, list[str]] = {}
    for row in fitted:
        by_source.setdefault(row["provenance"], []).append(row["what"].replace("_", " "))
    families = "; ".join(f"{source}: {', '.join(names)}" for source, names in by_source.items())
    measured = summary.total(row["rows"] for row in fitted)
    return (families, f"({text.whole(measured)} rows)")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _known_as(device: str) -> str | None:
    from joulecast.errors import InputError
    from joulecast.gpus import load_gpu

    try:
        return load_gpu(device).name
    except InputError:
        return None


def _names_by_nvml() -> list[str] | None:
    """Names by NVIDIA's own library; None where it, or a driver, is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _names_by_nvidia_smi() -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            timeout=10,
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
