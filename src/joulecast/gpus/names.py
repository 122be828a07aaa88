"""Names of GPUs: what people and drivers write, brought to one form, and the accelerators that are refused."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from joulecast.errors import InputError, UnknownNameError, shortened

DATA = Path(__file__).parent / "data"
MAX_NAME_LENGTH = 200

# Words that say who sells a GPU or what kind of thing it is, not which GPU.
# Quadro stays: a "Quadro RTX 6000" is one board, an "RTX 6000" may be any of three generations.
_NOISE = frozenset(
    ("nvidia", "tesla", "geforce", "amd", "ati", "instinct", "radeon", "corporation", "inc", "dgx", "hgx", "the")
) | frozenset(("gpu", "gpus", "graphics", "card", "accelerator", "tensor", "core", "generation", "gen", "aarch64"))
_MEMORY_KINDS = re.compile(r"(hbm\d?e?|gddr\d?x?)\Z")
# Glued spellings are parted: rtx4090, 2080ti, h100sxm, 80 gb (joined).
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*\d+\s*x\s+", ""),
        (r"[^a-z0-9.]+", " "),
        (r"\b(rtx|gtx)(?=[a-z]?\d)", r"\1 "),
        (r"\b(\d{3,4})(ti|super)\b", r"\1 \2"),
        (r"(?<=[a-z0-9])(sxm\d?|pcie)\b", r" \1"),
        (r"\b(sxm)\s?\d\b", r"\1"),
        (r"\b(pcie|pci e|pci express)\b", "pcie"),
        (r"\b(\d+) ?g(i?b)?\b", r"\1gb"),
    )
)

# What may be named beside GPUs in tables and command lines: words that give it away, and what it is.
_OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("gaudi", "gaudi2", "gaudi3", "habana", "hpu"), "an accelerator of Intel Habana"),
    (("intel", "pvc", "ponte", "arc"), "a GPU of Intel"),
    (("sambanova", "sn40l", "sn30"), "a dataflow accelerator"),
    (("qualcomm", "qaic", "aic100", "qaic100"), "an inference accelerator of Qualcomm"),
    (("untether", "untetherai", "speedai240", "speedai"), "an inference accelerator"),
    (("jetson", "orin", "xavier", "tegra"), "a system on a chip with memory shared with its CPU"),
    (("mali", "arm", "adreno", "powervr"), "a GPU of a phone or single-board computer"),
    (("tpu", "tpuv4", "tpuv5", "tpuv5e", "tpuv5p", "tpuv6e", "coral"), "an accelerator of Google"),
    (("trainium", "trainium2", "inferentia", "inferentia2", "trn1", "trn2", "inf2"), "an accelerator of AWS"),
    (("cerebras", "wse", "wse2", "wse3", "graphcore", "ipu", "groq", "tenstorrent", "ascend"), "no GPU"),
    (("apple", "m1", "m2", "m3", "m4", "mps"), "a system on a chip of Apple"),
    (("cpu", "xeon", "epyc", "raspberry", "rpi4", "odroid"), "no GPU"),
)


class Entry(NamedTuple):
    """One GPU of the catalogue as its names tell it, before its numbers are read."""

    name: str
    aliases: tuple[str, ...]
    shorthand: tuple[str, ...]
    path: Path


class Index(NamedTuple):
    """All names: canonical form to the entry, and which of them leave something open."""

    entries: Mapping[str, Entry]
    by_name: Mapping[str, Entry]
    open_names: frozenset[str]


def canonical(name: str, *, memory_kind: bool = False) -> str:
    """`name` without what spellings differ in: case, order, separators, vendor, socket version.

    Parameters
    ----------
    name : str
        What someone or some driver wrote, such as ``8 x NVIDIA A100-SXM4-80GB``.
    memory_kind : bool
        Whether to keep the kind of memory, such as HBM3, which some device names are told apart by.

    Returns
    -------
    str
        Words in alphabetical order, such as ``80gb a100 sxm``.
    """
    text = name.lower()
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    words = {word.strip(".") for word in text.split()} - _NOISE - {""}
    if not memory_kind:
        words = {word for word in words if not _MEMORY_KINDS.match(word)}
    return " ".join(sorted(words))


@functools.cache
def index() -> Index:
    """Names of every catalogue file; only their heads are parsed, so that one look-up stays quick."""
    entries: dict[str, Entry] = {}
    for path in sorted(DATA.glob("*.toml")):
        head = tomllib.loads(path.read_text("utf-8").split("\n[", 1)[0])
        entry = Entry(head["name"], tuple(head.get("aliases", ())), tuple(head.get("shorthand", ())), path)
        entries[entry.name] = entry
    spelled = [(name, entry) for entry in entries.values() for name in (entry.name, *entry.aliases, *entry.shorthand)]
    by_name = {canonical(name, memory_kind=True): entry for name, entry in spelled}
    # Without the kind of memory a name may be another GPU's own: that one wins.
    for name, entry in spelled:
        by_name.setdefault(canonical(name), entry)
    open_names = {canonical(name) for entry in entries.values() for name in entry.shorthand}
    return Index(entries, by_name, frozenset(open_names))


@functools.lru_cache(maxsize=1024)
def find(name: str) -> tuple[Entry, str]:
    """The catalogue entry that `name` means, and a note if the name leaves something open.

    Parameters
    ----------
    name : str
        Any spelling.

    Returns
    -------
    entry : Entry
        What it means.
    note : str
        Such as ``h100 means H100-SXM-80GB``; empty where the name says it all.

    Raises
    ------
    InputError
        If it is an accelerator that joulecast does not describe.
    UnknownNameError
        If no GPU has that name; the line names the nearest.
    """
    names = index()
    if len(name) <= MAX_NAME_LENGTH:
        # The full spelling first: "H100 80GB HBM3" is one board, "H100 80GB" is open.
        for key in (canonical(name, memory_kind=True), canonical(name)):
            entry = names.by_name.get(key)
            if entry is not None:
                open_ended = key in names.open_names
                return entry, f"{shortened(name.strip())} means {entry.name}" if open_ended else ""
        refuse_other_accelerators(name)
    known = [*names.entries, *(short for entry in names.entries.values() for short in entry.shorthand)]
    raise UnknownNameError("GPU", name[:MAX_NAME_LENGTH], known)


def refuse_other_accelerators(name: str) -> None:
    """Raise if `name` is an accelerator that is no CUDA or ROCm GPU of the catalogue's kind.

    Raises
    ------
    InputError
        Naming it and what it is.
    """
    words = set(canonical(name).split())
    for marks, kind in _OTHERS:
        if not words.isdisjoint(marks):
            raise InputError(
                f"{shortened(name.strip())} is not a CUDA or ROCm GPU that joulecast describes: it is {kind}; "
                "see `joulecast gpus` for those it does"
            )
