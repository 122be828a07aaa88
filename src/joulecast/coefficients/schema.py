"""What a coefficient file holds: fitted numbers of one GPU, with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

SCHEMA = 1

#: Where a figure comes from, best first.
PROVENANCES = ("measured", "fitted", "transferred", "spec sheet")


@dataclass(frozen=True)
class TimeCoefficients:
    """How far one kind of kernel gets towards the limits of one GPU.

    Attributes
    ----------
    tensor_efficiency, cuda_efficiency, sfu_efficiency, shared_efficiency, l2_efficiency, dram_efficiency : float
        Share of the peak rate of each module that is reached in a long kernel, in (0, 1].
    fixed_us : float
        Time of a launch that no clock changes. [us]
    fixed_kcycles : float
        Time of a launch that scales with the core clock (prologue, epilogue, latency). [1000 core cycles]
    sharpness : float
        Exponent of the smooth maximum over modules; large means perfect overlap, 1 none.
    latency_factor : float
        Latency of a chain of dependent steps over the nominal one of its kernel.
    link_efficiency : float
        Share of the rate of the links between GPUs that a large message reaches, in (0, 1].
    host_us, host_lead_us : float
        Of the host that the rows were measured from, where it started each kernel by itself: the shortest time
        it can take between two clock readings, and the part of it before the kernel starts. Needed to compare
        with measured times; no part of the kernel's. [us]
    scale : float
        Factor on the time that steps of whole networks show, where kernels alone were not measured.
    pass_scale : float
        Factor on the time inside whole passes of models, beside what benchmarks of kernels show.
    message_factors : mapping of str to float
        Factor on the time of a collective by the size of its message (logarithm to base 2 of bytes, as a text):
        libraries change protocols and algorithms from size to size. Between sizes it is interpolated.
    provenance : str
        One of `PROVENANCES`.
    source : str
        What they were fitted on, for a reader.
    rows : int
        Measured rows in the fit.
    error : float
        Mean absolute relative error of left-out rows.
    spread90 : float
        90th percentile of ``|log(predicted / measured)|`` over left-out rows: half the width of the conformal
        90 % interval, in natural logarithms.
    moved90 : float
        The part of `spread90`, in quadrature, that comes of their being a relative's; no part of a file. It doesn't go
        with the size of a kernel, as what is left of `spread90` does.
    """

    tensor_efficiency: float = 0.75
    cuda_efficiency: float = 0.7
    sfu_efficiency: float = 0.6
    shared_efficiency: float = 0.7
    l2_efficiency: float = 0.6
    dram_efficiency: float = 0.85
    fixed_us: float = 2.0
    fixed_kcycles: float = 2.0
    sharpness: float = 3.0
    link_efficiency: float = 0.7
    latency_factor: float = 1.0
    host_us: float = 0.0
    host_lead_us: float = 0.0
    scale: float = 1.0
    pass_scale: float = 1.0
    message_factors: Mapping[str, float] = field(default_factory=dict)
    provenance: str = "spec sheet"
    source: str = "defaults for a GPU without measured kernels"
    rows: int = 0
    error: float = 0.35
    spread90: float = 0.7
    moved90: float = 0.0


#: The numbers of `TimeCoefficients` that a fit changes, in the order of `joulecast.physics.timing`.
TIME_PARAMETERS = (
    "tensor_efficiency",
    "cuda_efficiency",
    "sfu_efficiency",
    "shared_efficiency",
    "l2_efficiency",
    "dram_efficiency",
    "fixed_us",
    "fixed_kcycles",
    "sharpness",
    "link_efficiency",
    "latency_factor",
)


@dataclass(frozen=True)
class PowerCoefficients:
    """Energies of one GPU: joules for each unit of work, and the watts it draws whatever it does.

    Core-domain energies are stated at the voltage of the GPU's rate clock and scale with a power of the voltage.

    Attributes
    ----------
    idle_w : float
        Power with a context resident, clocks at their lowest load state, nothing running. [W]
    clocked_w : float
        Added power of the clocked core at the rate clock with nothing running; scales with V^2 f. [W]
    active_w : float
        Added power at the rate clock while SMs hold blocks, whatever they do; scales with V^2 f. [W]
    tensor_pj, cuda_pj : mapping of str to float
        By arithmetic. [pJ/FLOP]
    sfu_pj : float
        [pJ/result]
    shared_pj, l2_pj, dram_pj : float
        [pJ/B]
    voltage_floor, voltage_knee : float
        Family curve where the GPU has no voltage points: voltage at low clocks over that at the highest clock,
        and the clock, over the highest, up to which it stays there.
    voltage_exponent : float
        Power of the voltage that core-domain energies go with: 2 of what is switched alone; more where leakage and
        the losses of regulators, which rise faster, are in them.
    provenance, source : str
    rows : int
    error : float
        Mean absolute relative error of power on left-out rows.
    spread90 : float
        90th percentile of ``|log(predicted / measured)|`` of power over left-out rows.
    limit_share : float
        Mean power that a throttled GPU settles at, over its power limit.
    learned_share : float
        How much of the learned correction of power belongs to these energies: 1 for those of single kernels, which it
        was trained on, 0 for those of whole passes.
    model_factor : float
        What the work of whole models takes over that of benchmarked kernels (`ModelEnergy`); no part of a file's table
        of energies, but found for the GPU that is asked for. Dimensionless.
    family_spread90 : mapping of str to float
        As `spread90`, by ``family/engine``, with the learned correction.
    """

    idle_w: float
    clocked_w: float
    active_w: float
    tensor_pj: Mapping[str, float]
    cuda_pj: Mapping[str, float]
    sfu_pj: float
    shared_pj: float
    l2_pj: float
    dram_pj: float
    voltage_floor: float = 0.75
    voltage_knee: float = 0.7
    voltage_exponent: float = 2.0
    provenance: str = "spec sheet"
    source: str = "defaults for a GPU without power data"
    rows: int = 0
    error: float = 0.25
    spread90: float = 0.5
    limit_share: float = 1.0
    learned_share: float = 0.0
    model_factor: float = 1.0
    family_spread90: Mapping[str, float] = field(default_factory=dict)

    def spread90_of(self, family: str, engine: str) -> float:
        """Half-width of the interval of the power of one engine's kernels; `spread90` where they were not measured."""
        return self.family_spread90.get(f"{family}/{engine}", self.spread90)


#: Cost of a compiled launch over that of an eager one: an assumption, no measured table tells them apart.
_COMPILED_SHARE = 0.6


@dataclass(frozen=True)
class HostCoefficients:
    """What starting kernels costs a host.

    Attributes
    ----------
    eager_us, compiled_us, cuda_graph_us : float
        Cost of a launch by launch mode. [us]
    module_us : float
        Added cost in eager mode of calling a module with weights (linear, convolution, attention); modules without
        weights cost a share of it (`joulecast.physics.host.PLAIN_MODULE`). [us]
    copy_share : float
        Cost of a launch that copies over that of another: most copies are made inside other operations, which need
        their operands laid together, and no Python is gone through for them.
    provenance, source : str
    rows : int
    """

    eager_us: float = 7.0
    compiled_us: float = 4.0
    cuda_graph_us: float = 1.0
    module_us: float = 14.0
    copy_share: float = 0.2
    provenance: str = "spec sheet"
    source: str = "14 to 17 us a traced kernel on an H100's host (EnergAIzer artifact)"
    rows: int = 0

    @classmethod
    def of_eager(cls, launch_us: float, module_us: float, source: str, rows: int) -> HostCoefficients:
        """Of a host whose eager launches were fitted; other modes were not measured and are taken in proportion.

        Compiled launches cost what the defaults give them beside eager ones; graphs cost no host more than another.
        """
        return cls(
            eager_us=launch_us,
            compiled_us=_COMPILED_SHARE * launch_us,
            module_us=module_us,
            provenance="fitted",
            source=source,
            rows=rows,
        )

    def launch_us(self, mode: str) -> float:
        """Cost of a launch in `mode` (``eager``, ``compiled`` or ``cuda_graph``). [us]"""
        return {"eager": self.eager_us, "compiled": self.compiled_us, "cuda_graph": self.cuda_graph_us}[mode]


@dataclass(frozen=True)
class Calibration:
    """Where a file comes from, for a reader.

    Attributes
    ----------
    version : str
        Of joulecast.
    date : str
        ``YYYY-MM-DD``; empty in files that are rebuilt.
    seed : int
    sources : str
        Tables, with the frameworks and versions in them.
    rows, set_aside : int
        Measured rows in the fits, and those that the audit set aside.
    residuals : mapping of str to float
        Mean absolute relative error of left-out rows by kernel family, and of ``power``.
    """

    version: str = ""
    date: str = ""
    seed: int = 0
    sources: str = ""
    rows: int = 0
    set_aside: int = 0
    residuals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelEnergy:
    """What running whole models takes beside what benchmarks of their kernels say.

    Benchmarks run one kernel again and again, on operands that stay in the L2 cache, that nobody wrote or that are all
    alike, and their meter holds much of what ran before; models read weights from DRAM and work on data of their own.

    Attributes
    ----------
    factor : float
        On all energy beyond what a clocked GPU draws with nothing running. Dimensionless.
    provenance, source : str
    rows : int
        Measured runs in the fit.
    error : float
        Mean absolute relative error of the power of runs whose model was left out, at measured times.
    before : float
        Mean absolute relative error with a factor of 1.
    """

    factor: float
    provenance: str = "fitted"
    source: str = ""
    rows: int = 0
    error: float = 0.0
    before: float = 0.0


@dataclass(frozen=True)
class GpuCoefficients:
    """All fitted numbers of one GPU.

    Attributes
    ----------
    gpu : str
    time : mapping of str to TimeCoefficients
        By ``family/engine/group``.
    power : PowerCoefficients or None
        None where no power of this GPU was ever fitted.
    host : HostCoefficients or None
        The host that this GPU's runs were measured on.
    calibration : Calibration or None
        Where the file comes from.
    model_energy : ModelEnergy or None
        None where no whole models were measured beside the kernels that energies were fitted on.
    """

    gpu: str
    time: Mapping[str, TimeCoefficients] = field(default_factory=lambda: MappingProxyType({}))
    power: PowerCoefficients | None = None
    host: HostCoefficients | None = None
    calibration: Calibration | None = None
    model_energy: ModelEnergy | None = None

    @cached_property
    def by_family(self) -> Mapping[str, tuple[tuple[str, str, str, TimeCoefficients], ...]]:
        """Key, engine, group and coefficients of each kernel of `time`, by family."""
        found: dict[str, list[tuple[str, str, str, TimeCoefficients]]] = {}
        for key, fitted in self.time.items():
            family, engine, group = key.split("/", 2)
            found.setdefault(family, []).append((key, engine, group, fitted))
        return {family: tuple(those) for family, those in found.items()}
