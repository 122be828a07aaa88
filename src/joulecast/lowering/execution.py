"""`Execution`: how a model is run, the third input beside the workload and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

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
    tp, pp, ep : int
        Tensor, pipeline and expert parallel degree. Experts are spread over GPUs of the tensor-parallel group,
        so `ep` divides `tp`.
    """

    launch_mode: str = "eager"
    attention: str = "fused"
    engine: str = "pytorch"
    tp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for what, word, known in (
            ("launch mode", self.launch_mode, LAUNCH_MODES),
            ("attention", self.attention, ATTENTIONS),
            ("engine", self.engine, ENGINES),
        ):
            if word not in known:
                raise UnknownNameError(what, word, known)
        for name in ("tp", "pp", "ep"):
            value = getattr(self, name)
            degree = 0 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
            if not 1 <= degree <= 4096:
                raise InputError(f"{name} must be a whole number from 1 to 4096, got {shortened(value)!r}")
            object.__setattr__(self, name, degree)
        if self.tp % self.ep:
            raise InputError(
                f"ep={self.ep} must divide tp={self.tp}: experts are spread over the GPUs of the tensor-parallel group"
            )

    @property
    def gpu_count(self) -> int:
        """GPUs of the layout."""
        return self.tp * self.pp
