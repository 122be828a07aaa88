"""Which GPU of the catalogue a trace was taken on."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, gpu_names, load_gpu
from joulecast.gpus.names import find
from joulecast.workloads.profile import Device, Profile

_VENDORS = (("amd", "amd"), ("radeon", "amd"), ("instinct", "amd"), ("nvidia", "nvidia"), ("tesla", "nvidia"))


def gpu_for(parts: Sequence[tuple[Profile, int]]) -> Gpu:
    """The GPU that profiles say they were taken on.

    Parameters
    ----------
    parts : sequence of (Profile, int)
        Profiles, each with the number of its GPU.

    Returns
    -------
    Gpu

    Raises
    ------
    InputError
        If they don't say, say several, or name one that the catalogue lacks; nearest ones are suggested.
    """
    told = (profile.devices.get(number) for profile, number in parts)
    named = {device.name: device for device in told if device is not None and device.name}
    if not named:
        raise InputError("the trace does not say which GPU it was taken on: name it, as in --gpu a100-sxm-80gb")
    found: dict[str, Gpu] = {}
    for name, device in named.items():
        try:
            entry, _ = find(name)
        except UnknownNameError:
            raise InputError(_unknown(device)) from None
        found.setdefault(entry.name, load_gpu(entry.name))
    if len(found) > 1:
        raise InputError(f"the traces are of several GPUs ({', '.join(found)}): attribute them one kind at a time")
    return next(iter(found.values()))


def nearest(device: Device) -> list[str]:
    """Names of the catalogue's GPUs with as many SMs, of the same generation and about as much memory."""
    out = []
    for name in gpu_names():
        gpu = load_gpu(name)
        memory = gpu.dram_gib * 2**30
        same_memory = not device.memory_bytes or 0.85 < device.memory_bytes / memory < 1.05
        same_kind = not device.capability or gpu.vendor != "nvidia" or gpu.compute_capability == device.capability
        if gpu.sm_count == device.sm_count and same_memory and same_kind:
            out.append(name)
    return out


def unlike(profile: Profile, number: int, gpu: Gpu) -> str:
    """A line where the trace is of another GPU than `gpu`; empty where it is not, or does not say."""
    device = profile.devices.get(number)
    if device is None:
        return ""
    other = next((vendor for word, vendor in _VENDORS if word in device.name.lower()), gpu.vendor)
    if other != gpu.vendor:
        return (
            f"the trace was taken on a GPU of another vendor ({shortened(device.name)}): times are those measured, "
            f"energies those of {gpu.name}"
        )
    if not device.sm_count or device.sm_count == gpu.sm_count:
        return ""
    return (
        f"the trace was taken on {shortened(device.name) or 'a GPU'} with {device.sm_count} SMs, {gpu.name} has "
        f"{gpu.sm_count}: times are those measured, energies those of {gpu.name}"
    )


def _unknown(device: Device) -> str:
    facts = [f"{device.sm_count} SMs"] if device.sm_count else []
    facts += [f"{device.memory_bytes / 2**30:.0f} GiB"] if device.memory_bytes else []
    like = nearest(device)[:3] if device.sm_count else []
    hint = f"; like it: {', '.join(like)}" if like else ""
    told = f" ({', '.join(facts)})" if facts else ""
    name = shortened(device.name)
    return f"the trace was taken on {name}{told}, which the catalogue lacks by that name: give --gpu{hint}"
