"""`Execution`: how a model is run, the third input beside the workload and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from joulecast.bounds.ranges import number
from joulecast.errors import InputError, UnknownNameError, shortened

LAUNCH_MODES = ("eager", "compiled", "cuda_graph")
ATTENTIONS = ("fused", "eager")
ENGINES = ("pytorch", "trtllm", "vllm")


@dataclass(frozen=True)
class Execution:
    """How a workload is run on one GPU or a group of like GPUs.

    Attributes
    ----------
    launch_mode : str
        ``eager`` (PyTorch as it comes), ``compiled`` (pointwise chains fused) or ``cuda_graph`` (fused, and
        launched as one graph).
    attention : str
        ``fused`` (FlashAttention and its like) or ``eager`` (matrix multiplies and a softmax).
    engine : str
        Whose kernels: ``pytorch``, ``trtllm`` or ``vllm``.
    tp, pp, ep, dp : int
        Tensor, pipeline, expert and data parallel degree. Each of `dp` replicas runs the workload by itself. Experts
        are spread over the GPUs of a tensor-parallel group (`ep` divides `tp`), or over those of several replicas
        (`ep` is a multiple of `tp` that divides ``tp * dp``).
    microbatches : int
        Of each replica, one after the other through its pipeline; each of them runs the workload.
    overlap : float
        Share of the time of collectives that runs beside other work, 0 to 1; no engine's default is assumed.
    """

    launch_mode: str = "eager"
    attention: str = "fused"
    engine: str = "pytorch"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    microbatches: int = 1
    overlap: float = 0.0

    def __post_init__(self) -> None:
        for what, word, known in (
            ("launch mode", self.launch_mode, LAUNCH_MODES),
            ("attention", self.attention, ATTENTIONS),
            ("engine", self.engine, ENGINES),
        ):
            if word not in known:
                raise UnknownNameError(what, word, known)
        for name in ("tp", "pp", "ep", "dp", "microbatches"):
            value = getattr(self, name)
            degree = 0 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
            if not 1 <= degree <= 4096:
                raise InputError(f"{name} must be a whole number from 1 to 4096, got {shortened(value)!r}")
            object.__setattr__(self, name, degree)
        over_replicas = self.ep % self.tp == 0 and (self.tp * self.dp) % self.ep == 0
        if self.tp % self.ep and not over_replicas:
            raise InputError(
                f"ep={self.ep} must divide tp={self.tp}, or be a multiple of it that divides tp x dp={self.alike}"
                ": experts are spread over a tensor-parallel group or over whole replicas"
            )
        overlap = number(self.overlap, "overlap")
        if not 0 <= overlap <= 1:
            raise InputError(f"overlap must be a share from 0 to 1, got {overlap:g}")
        object.__setattr__(self, "overlap", overlap)

    @property
    def gpu_count(self) -> int:
        """GPUs of the layout."""
        return self.tp * self.pp * self.dp

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def alike(self) -> int:
        """GPUs of one pipeline stage, over all replicas: they do the same at the same time."""
        return self.tp * self.dp

    @property
    def expert_replicas(self) -> int:
        """Replicas whose tokens the experts of one group work on."""
        return max(self.ep // self.tp, 1)

    @property
    def expert_group(self) -> int:
        """GPUs that exchange tokens for their experts."""
        return max(self.ep, self.tp)


def share_of_batch(batch: int, dp: int, microbatches: int) -> int:
    """Batch of one microbatch of one replica.

    Raises
    ------
    InputError
        If `batch` does not divide; the nearest that do are named.
    """
    for name, value in (("batch", batch), ("dp", dp), ("microbatches", microbatches)):
        whole = isinstance(value, Integral) or (isinstance(value, float) and value % 1 == 0)
        if isinstance(value, bool) or not whole or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {shortened(value)!r}")
    parts = dp * microbatches
    if batch % parts == 0:
        return batch // parts
    near = [one for one in (batch // parts * parts, (batch // parts + 1) * parts) if one]
    raise InputError(
        f"batch {batch} does not divide over {parts} (dp={dp} x microbatches={microbatches}); "
        f"{' and '.join(str(one) for one in near)} {'does' if len(near) == 1 else 'do'}"
    )
