"""`attribute`: measured times of a profiler trace in, power and energy of everything in it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.bounds.ranges import check_clock_mhz, check_power_limit_w
from joulecast.errors import InputError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.physics.uncertainty import combined, of_sum
from joulecast.traces.account import Account, account
from joulecast.traces.assign import BASES, FAMILY, GRID, NOTHING, Assignment, assigned
from joulecast.traces.devices import gpu_for, unlike
from joulecast.traces.energies import Energies, energies
from joulecast.traces.names import UNRECOGNISED
from joulecast.traces.places import Steps, steps_of
from joulecast.traces.read import read_profile
from joulecast.workloads.profile import COPY, KERNEL, SET, Activities, Ints, Profile

Progress = Callable[[str, float], None]

#: Share of the kernels' time that may go unrecognised, or be known by family alone, before a reader is told.
_TOLD_FROM = 0.02


@dataclass(frozen=True)
class GpuShare:
    """What ran on one GPU of one file, with what it took.

    Attributes
    ----------
    profile : Profile
        Its activities are those of this GPU alone.
    device : int
    assignment : Assignment
    energies : Energies
    account : Account
    steps : Steps
    window_s : tuple of float
        Begin and end of what is accounted for: the steps where they are marked, and all that ran. [s]
    sm_count : int
        Of the GPU.
    families : tuple of str
    family : ndarray of int
        Of each activity, an index into `families`: kernel families, copies, fills.
    """

    profile: Profile
    device: int
    assignment: Assignment
    energies: Energies
    account: Account
    steps: Steps
    window_s: tuple[float, float]
    sm_count: int
    families: tuple[str, ...]
    family: Ints

    @property
    def label(self) -> str:
        """Rank or file, and device, for people."""
        rank = f"rank {self.profile.rank}" if self.profile.rank is not None else Path(self.profile.source).name
        return f"{rank}, GPU {self.device}"

    @property
    def wall_s(self) -> float:
        """Length of the window. [s]"""
        return self.window_s[1] - self.window_s[0]


@dataclass(frozen=True)
class Attribution:
    """Power and energy of what a trace recorded.

    Attributes
    ----------
    gpu : str
    clock_mhz : float
    clock_given : bool
    power_limit_w : float
    shares : tuple of GpuShare
        One for each GPU of each file.
    energy_j : float
        Of all of them over their windows. [J]
    time_s : float
        Sum of the windows. [s]
    interval_j : tuple of float
        90 % interval of the energy. [J]
    warnings, notes : tuple of str
    """

    gpu: str
    clock_mhz: float
    clock_given: bool
    power_limit_w: float
    shares: tuple[GpuShare, ...]
    energy_j: float
    time_s: float
    interval_j: tuple[float, float]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def power_w(self) -> float:
        """Mean power of one GPU. [W]"""
        return self.energy_j / self.time_s

    def table(self, by: str) -> dict[str, list[Any]]:
        """Time and energy by kernel, family, operator, layer, step or gpu: `joulecast.traces.groups.table`."""
        from joulecast.traces.groups import table

        return table(self, by)


def attribute(
    sources: str | Path | Sequence[str | Path],
    gpu: str | Gpu | None = None,
    *,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    progress: Progress | None = None,
) -> Attribution:
    """Power and energy of each kernel, operator, layer and step of profiler traces, from their measured times.

    Parameters
    ----------
    sources : str, Path or sequence of them
        PyTorch profiler traces (Chrome JSON, plain or gzip) or Nsight Systems' SQLite exports; told apart by
        content. Several are ranks of one job.
    gpu : str or Gpu, optional
        Where the traces were taken; default what they say.
    clock_mhz : float, optional
        Core clock they were taken at; default the GPU's highest, with a wider interval. [MHz]
    power_limit_w : float, optional
        Board power limit they were taken under; default the GPU's own. [W]
    progress : callable, optional
        Given what is done and the share of it that is.

    Returns
    -------
    Attribution

    Raises
    ------
    InputError
        If a file can't be read, holds nothing that ran on a GPU, or is of a GPU that the catalogue lacks.

    Notes
    -----
    Energy of a kernel is that of its work (as `joulecast.predict_kernels` has it) and the static power over its
    measured time; kernels that overlap share the static power. The parts and the idle gaps sum to the integral of
    the power over the window.
    """
    paths = [sources] if isinstance(sources, str | Path) else sources
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
        raise InputError(f"traces are files by name, one or several, not {shortened(repr(sources), 40)}")
    if not paths:
        raise InputError("no trace given: name a profiler trace")
    twice = [path for place, path in enumerate(paths) if Path(path) in map(Path, paths[:place])]
    if twice:
        raise InputError(f"{shortened(twice[0])} is named twice: its energy would be counted twice")
    profiles = []
    for place, path in enumerate(paths):
        told = None
        if progress is not None:
            told = _part(progress, f"reading {Path(path).name}", place / len(paths), 1 / len(paths))
        profiles.append(read_profile(path, told))
    return attributed(profiles, gpu, clock_mhz=clock_mhz, power_limit_w=power_limit_w)


def attributed(
    profiles: Sequence[Profile],
    gpu: str | Gpu | None = None,
    *,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
) -> Attribution:
    """As `attribute`, of profiles that were read."""
    parts = [part for profile in profiles for part in by_device(profile)]
    if not parts:
        raise InputError(_nothing(profiles))
    described = load_gpu(gpu) if gpu is not None else gpu_for(parts)
    clock = check_clock_mhz(clock_mhz, described.clock_min_mhz, described.clock_max_mhz, described.name)
    limit = (
        described.power_limit_default_w
        if power_limit_w is None
        else check_power_limit_w(power_limit_w, described.idle_w, described.name)
    )
    shares = tuple(_share(profile, device, described, clock, limit) for profile, device in parts)
    energy = sum(share.account.total_j for share in shares)
    time_s = sum(share.wall_s for share in shares)
    width = _half_width(shares, energy)
    if clock_mhz is None:
        width = float(combined(width, _clock_width(shares, described, clock, limit, energy)))
    lower = max(energy * np.exp(-width), min(energy, described.idle_w * 0.5 * time_s))
    upper = max(energy, min(energy * np.exp(width), limit * time_s))
    return Attribution(
        gpu=described.name,
        clock_mhz=clock,
        clock_given=clock_mhz is not None,
        power_limit_w=limit,
        shares=shares,
        energy_j=energy,
        time_s=time_s,
        interval_j=(float(lower), float(upper)),
        warnings=tuple(_warnings(shares, described)),
        notes=tuple(_notes(profiles, shares, described, clock, clock_mhz is not None)),
    )


def by_device(profile: Profile) -> list[tuple[Profile, int]]:
    """The profile with what ran on each of its GPUs alone."""
    devices = np.unique(profile.activities.device).tolist()
    if len(devices) == 1:
        return [(profile, devices[0])]
    device = profile.activities.device
    return [(replace(profile, activities=_taken(profile.activities, device == one)), one) for one in devices]


def _taken(activities: Activities, rows: Any) -> Activities:
    return Activities(**{name: value[rows] for name, value in activities.__dict__.items()})


def _share(profile: Profile, device: int, gpu: Gpu, clock_mhz: float, limit_w: float) -> GpuShare:
    activities = profile.activities
    assignment = assigned(profile)
    drawn = energies(profile, assignment, gpu, clock_mhz)
    steps = steps_of(profile)
    window = _window(activities, steps)
    names, family = _families(profile, assignment)
    accounted = account(
        activities.start_s, activities.time_s, drawn.dynamic_w, static_w=drawn.static_w, limit_w=limit_w,
        window_s=window,
    )  # fmt: skip
    return GpuShare(profile, device, assignment, drawn, accounted, steps, window, gpu.sm_count, names, family)


def _window(activities: Activities, steps: Steps) -> tuple[float, float]:
    begin, end = float(activities.start_s.min()), float((activities.start_s + activities.time_s).max())
    if steps.labels:
        begin, end = min(begin, float(steps.start_s.min())), max(end, float(steps.end_s.max()))
    return begin, max(end, begin + 1e-9)


def _families(profile: Profile, assignment: Assignment) -> tuple[tuple[str, ...], Ints]:
    activities = profile.activities
    codes: dict[str, int] = {}
    by_name = {name: codes.setdefault(kernel.family, len(codes)) for name, kernel in assignment.kernels.items()}
    of_moves = {
        code: codes.setdefault(name, len(codes)) for code, name in ((COPY, "memory copy"), (SET, "memory fill"))
    }
    family = [
        by_name[name] if category == KERNEL else of_moves[category]
        for name, category in zip(activities.name.tolist(), activities.category.tolist(), strict=True)
    ]
    return tuple(codes), np.array(family, dtype=np.int64)


def _half_width(shares: Sequence[GpuShare], energy_j: float) -> float:
    """Half the width of the interval of the total: errors within a family go together."""
    parts, widths, families = [], [], []
    codes: dict[str, int] = {}
    static_j, static_spread = 0.0, 0.0
    for share in shares:
        static = share.energies.static_w * share.account.alone_s
        parts.append(np.maximum(share.account.energy_j - static, 0.0))
        widths.append(share.energies.spread)
        renamed = np.array([codes.setdefault(name, len(codes)) for name in share.families])
        families.append(renamed[share.family])
        static_j += share.energies.static_w * share.wall_s
        static_spread = share.energies.static_spread
    dynamic = np.concatenate(parts)
    moving = of_sum(dynamic, np.concatenate(widths), np.concatenate(families)) * float(dynamic.sum()) / energy_j
    return float(combined(moving, static_spread * static_j / energy_j))


def _clock_width(shares: Sequence[GpuShare], gpu: Gpu, clock: float, limit: float, energy_j: float) -> float:
    """What not knowing the clock adds: as far as it is to the energy at the base clock."""
    base = min(max(gpu.clock_base_mhz, gpu.clock_min_mhz), clock)
    if base >= clock:
        return 0.0
    slower = sum(_share(one.profile, one.device, gpu, base, limit).account.total_j for one in shares)
    return abs(float(np.log(max(slower, 1e-12) / energy_j)))


def time_by(share: GpuShare, chosen: Any) -> float:
    """Measured time of the kernels that `chosen` marks, over that of all kernels. Dimensionless."""
    kernels = share.profile.activities.category == KERNEL
    time_s = share.profile.activities.time_s
    total = float(time_s[kernels].sum())
    return float(time_s[kernels & chosen].sum()) / total if total else 0.0


def recognised_share(shares: Sequence[GpuShare]) -> float:
    """Share of the measured kernel time whose kernels' names are recognised. Dimensionless."""
    known = total = 0.0
    for share in shares:
        kernels = share.profile.activities.category == KERNEL
        time_s = share.profile.activities.time_s * kernels
        unknown = np.array([name == UNRECOGNISED for name in share.families])[share.family]
        known += float(time_s[~unknown].sum())
        total += float(time_s.sum())
    return known / total if total else 1.0


def basis_shares(shares: Sequence[GpuShare]) -> dict[str, float]:
    """Share of the energy of what ran by how its work is known."""
    out = dict.fromkeys(BASES, 0.0)
    for share in shares:
        for code, name in enumerate(BASES):
            out[name] += float(share.account.energy_j[share.assignment.basis == code].sum())
    total = sum(out.values())
    return {name: value / total for name, value in out.items()} if total else out


def _warnings(shares: Sequence[GpuShare], gpu: Gpu) -> list[str]:
    out = []
    unknown = 1 - recognised_share(shares)
    if unknown > _TOLD_FROM:
        out.append(
            f"kernels of {100 * unknown:.0f} % of the kernel time are not recognised: they are counted by their time, "
            "with the power of a kernel that moves memory"
        )
    out += [line for share in shares if (line := unlike(share.profile, share.device, gpu))]
    cut = sum(float(share.account.capped_j.sum()) for share in shares)
    total = sum(share.account.total_j for share in shares)
    if cut > _TOLD_FROM * total:
        out.append(
            f"the work found would take {100 * cut / total:.0f} % more energy than the power limit allows in the "
            "measured time: it is counted at the limit"
        )
    return list(dict.fromkeys(out))


def _notes(profiles: Sequence[Profile], shares: Sequence[GpuShare], gpu: Gpu, clock: float, given: bool) -> list[str]:
    out = [note for profile in profiles for note in profile.notes]
    if not given:
        out.append(f"the trace does not tell its clock: energies are those at {clock:,.0f} MHz (give --clock)")
    if not any(profile.has_shapes for profile in profiles):
        out.append(
            "no shapes were recorded (record_shapes=True): FLOP and bytes of matrix products, convolutions and "
            "attention can't be told; they are counted by their time and the typical power of their kind"
        )
    else:
        by_family = sum(time_by(share, np.isin(share.assignment.basis, (GRID, FAMILY, NOTHING))) for share in shares)
        if by_family / len(shares) > _TOLD_FROM:
            out.append(
                f"shapes are not known for {100 * by_family / len(shares):.0f} % of the kernel time: that part is "
                "counted by kernel names and measured times"
            )
    if gpu.vendor == "amd":
        out.append("an AMD trace: kernels are known by their names; energies of AMD GPUs were fitted on little data")
    return list(dict.fromkeys(out))


def _nothing(profiles: Sequence[Profile]) -> str:
    names = ", ".join(shortened(Path(profile.source).name, 60) for profile in profiles[:3])
    operators = sum(len(profile.operators) for profile in profiles)
    why = next((f" ({note})" for profile in profiles for note in profile.notes), "")
    if operators:
        return (
            f"{names}: nothing ran on a GPU, only {operators:,} operator{'s' * (operators != 1)} on the CPU{why}: "
            "there is no GPU energy to attribute; `joulecast predict` prices its operators where shapes were recorded"
        )
    return f"{names}: no kernels and no operators in it{why}: there is nothing to attribute"


def _part(progress: Progress, what: str, begin: float, length: float) -> Callable[[float], None]:
    return lambda share: progress(what, begin + length * min(share, 1.0))


__all__ = ["Attribution", "GpuShare", "attribute", "attributed", "basis_shares", "by_device", "recognised_share"]
