"""`Recipe`: how a model is trained, apart from what it is and where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType

import numpy as np

from joulecast.errors import InputError, UnknownNameError, shortened


@dataclass(frozen=True)
class Precision:
    """Formats of a training step.

    Attributes
    ----------
    model : str
        Format that the model's operations are asked for in.
    weights : str
        Format that weights are stored in.
    gradients : str
        Format of the gradients of weights.
    mixed : bool
        Weights and the stream between layers are kept in fp32, and cast where a matrix multiply reads them.
    scaled : bool
        The loss is scaled, and gradients scaled back and checked for infinities (fp16).
    """

    model: str
    weights: str
    gradients: str
    mixed: bool = False
    scaled: bool = False


#: By name. Mixed precision is that of an autocasting framework: norms, softmax and loss in fp32.
PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision("fp32", "fp32", "fp32"),
        "tf32": Precision("tf32", "fp32", "fp32"),
        "fp16": Precision("fp16", "fp16", "fp16"),
        "amp_fp16": Precision("fp16", "fp32", "fp32", mixed=True, scaled=True),
        "amp_bf16": Precision("bf16", "fp32", "fp32", mixed=True),
        "bf16": Precision("bf16", "bf16", "bf16"),
        "fp8": Precision("fp8", "bf16", "bf16"),
    }
)


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps and does for each parameter.

    Attributes
    ----------
    states : int
        Numbers kept beside the weight.
    state_bytes : float
        Bytes of each of them.
    flop : float
        Arithmetic for one parameter. [FLOP]
    steps : int
        Launches that an update takes where its steps are not fused (one tensor, or one list of tensors, each).
    """

    states: int
    state_bytes: float
    flop: float
    steps: int


#: By name. Steps are the multiplies, adds and divisions of the update as a framework starts them one by one.
OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer(0, 4, 2, 1),
        "momentum": Optimizer(1, 4, 4, 3),
        "adam": Optimizer(2, 4, 12, 9),
        "adamw": Optimizer(2, 4, 14, 10),
        "adamw_8bit": Optimizer(2, 1, 20, 1),
    }
)

#: How the update is started: one launch for many tensors and all its steps; one for many tensors and each step;
#: one for each tensor and step.
UPDATES = ("fused", "foreach", "per_tensor")

#: What of a layer is computed a second time in the backward pass instead of being kept.
CHECKPOINTING = ("none", "selective", "full")

#: Which weights learn.
TRAINABLE = ("all", "lora", "head")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes
    ----------
    precision : str
        One of `PRECISIONS`.
    optimizer : str
        One of `OPTIMIZERS`.
    update : str
        One of `UPDATES`.
    master_weights : bool
        Whether a 16-bit model keeps a copy of its weights in fp32, which the optimizer updates.
    clip_gradients : bool
        Whether the norm of all gradients is limited.
    accumulate : int
        Micro-batches whose gradients are added up for one update.
    checkpointing : str
        One of `CHECKPOINTING`: ``selective`` computes attention again, ``full`` whole layers.
    checkpointed_layers : int, optional
        Layers that `checkpointing` holds for; all by default.
    trainable : str
        One of `TRAINABLE`.
    frozen_layers : int
        First layers whose weights stay as they are, and that no gradient reaches.
    lora_rank : int
        Rank of the matrices that LoRA adds beside the projections.
    lora_targets : tuple of str
        Ends of the layer paths that LoRA adds to.
    dropout : bool, optional
        Whether values are dropped after each block of a layer; by default where the model's family was trained so.
    channels_last : bool
        Whether the channels of a pixel lie together in memory.
    autotuned : bool
        Whether convolutions first try the library's kernels out (``cudnn.benchmark``).

    fused_norms : bool
        Whether a batch norm, what is added and the activation behind it are one kernel, as in compiled graphs and
        cuDNN's own.
    direct_groups : bool
        Whether filters of grouped convolutions get their gradients from cuDNN's direct kernel, as up to its version
        8.0 (PyTorch 1.7): by far slower than what came after.

    Raises
    ------
    InputError
        For a number out of range or an unknown word.

    References
    ----------
    .. [1] E. Hu et al., LoRA: low-rank adaptation of large language models, ICLR 2022.
    .. [2] V. Korthikanti et al., Reducing activation recomputation in large transformer models, MLSys 2023.
    """

    precision: str = "amp_bf16"
    optimizer: str = "adamw"
    update: str = "fused"
    master_weights: bool = False
    clip_gradients: bool = False
    accumulate: int = 1
    checkpointing: str = "none"
    checkpointed_layers: int | None = None
    trainable: str = "all"
    frozen_layers: int = 0
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
    dropout: bool | None = None
    channels_last: bool = False
    autotuned: bool = False
    fused_norms: bool = False
    direct_groups: bool = False

    def __post_init__(self) -> None:
        for what, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("update", self.update, UPDATES),
            ("checkpointing", self.checkpointing, CHECKPOINTING),
            ("trainable", self.trainable, TRAINABLE),
        ):
            if not isinstance(value, str) or value not in known:
                raise UnknownNameError(what, value, known)
        for name in ("master_weights", "clip_gradients", "dropout", "channels_last", "autotuned", "fused_norms",
                     "direct_groups"):  # fmt: skip
            given = getattr(self, name)
            if not isinstance(given, bool | np.bool_) and not (name == "dropout" and given is None):
                raise InputError(f"{name} must be True or False, got {shortened(repr(given), 40)}")
        targets = (self.lora_targets,) if isinstance(self.lora_targets, str) else self.lora_targets
        if not isinstance(targets, tuple | list) or not all(isinstance(one, str) for one in targets):
            raise InputError(f"lora_targets are names of products, such as q_proj, not {shortened(repr(targets), 40)}")
        object.__setattr__(self, "lora_targets", tuple(targets))
        for name, least in (("accumulate", 1), ("frozen_layers", 0), ("lora_rank", 1), ("checkpointed_layers", 0)):
            given = getattr(self, name)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, Integral) or not least <= int(given) <= 2**31:
                raise InputError(
                    f"{name} must be a whole number of at least {least}, at most {2**31:,}, got {shortened(given)!r}"
                )
            object.__setattr__(self, name, int(given))

    @property
    def formats(self) -> Precision:
        """Formats of the step."""
        return PRECISIONS[self.precision]
