"""The kinds of operation, and the columns that describe each: the vocabulary of every table of operations.

A kind is data: its columns with their defaults, and which of them a tensor-parallel layout divides.
Sizes are counts of elements, tokens, heads or bytes, as the names say. Shapes are per GPU once lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from joulecast.errors import UnknownNameError

REQUIRED = None


@dataclass(frozen=True)
class Column:
    """One column of a kind of operation.

    Attributes
    ----------
    name : str
    type : str
        ``size`` (a whole number, at least `minimum`), ``real``, ``dtype`` (a number format; held as
        an index into `joulecast.bounds.dtypes.DTYPES`) or ``choice`` (held as an index into `choices`).
    default : float, str or None
        Taken where the column is absent; `REQUIRED` (None) where it must be given. The name of an
        earlier column of the same kind means "as that column".
    minimum, maximum : float
        Bounds of sizes and reals, inclusive.
    choices : tuple of str
        The words a ``choice`` may be; unknown words are refused.
    help : str
        Meaning, with unit.
    """

    name: str
    type: str
    default: float | str | None
    help: str
    minimum: float = 1
    maximum: float = 2.0**80  # beyond any machine: whether it fits is a question of memory, asked later
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """What sizes of one row have to do with each other.

    Attributes
    ----------
    columns : tuple of str
    holds : callable
        From the arrays of those columns: the rows in which it is so.
    text : str
        What must be, for people.
    """

    columns: tuple[str, ...]
    holds: Callable[..., Any]
    text: str


def _shared(many: str, few: str) -> Rule:
    return Rule((many, few), lambda whole, part: whole % part == 0, f"{many} must be a multiple of {few}")


@dataclass(frozen=True)
class Kind:
    """A kind of operation: its name, columns, and the columns that parallel layouts divide.

    Attributes
    ----------
    name : str
    columns : tuple of Column
    split_out, split_in : tuple of str
        Columns divided by the tensor-parallel degree when the operation's outputs (``shard="out"``)
        or its reduction (``shard="in"``, an all-reduce follows) are spread over GPUs.
    rules : tuple of Rule
        What a row of it can't be without.
    """

    name: str
    columns: tuple[Column, ...]
    split_out: tuple[str, ...] = ()
    split_in: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column called `name`; `UnknownNameError` if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise UnknownNameError(f"column of {self.name}", name, self.names)


def _size(name: str, help: str, default: float | str | None = REQUIRED, minimum: float = 1) -> Column:
    return Column(name, "size", default, help, minimum)


#: Zeros draw less: a multiplier whose operand is zero does not switch.
_ZERO_SHARE = Column("zero_share", "real", 0, "share of zeros among the activations read (0.5 after a ReLU)", 0, 1)


def _dtype(name: str, help: str, default: str | None = REQUIRED) -> Column:
    return Column(name, "dtype", default, help)


def _choice(name: str, choices: tuple[str, ...], default: str | None, help: str) -> Column:
    return Column(name, "choice", default, help, choices=choices)


_ATTENTION_DTYPES = (
    _dtype("attn_dtype", "format of the attention arithmetic", "bf16"),
    _dtype("kv_cache_dtype", "format of the keys and values in memory", "attn_dtype"),
)
_CAUSAL_ATTENTION = (
    _size("batch_size", "sequences"),
    _size("query_len", "new tokens a sequence", 1),
    _size("past_len", "cached tokens a sequence before the new ones; keys = past + query", 0, 0),
    _size("num_heads", "query heads"),
    _size("num_kv_heads", "key and value heads", "num_heads"),
    _size("head_dim", "width of a head"),
    _size("value_dim", "width of a value head", "head_dim"),
    _size("window_size", "keys a query sees, 0 = all before it", 0, 0),
    *_ATTENTION_DTYPES,
)
_MLA = (
    _size("batch_size", "sequences"),
    _size("query_len", "new tokens a sequence", 1),
    _size("past_len", "cached tokens a sequence", 0, 0),
    _size("num_heads", "query heads on this GPU"),
    *_ATTENTION_DTYPES,
)
LATENT_MODELS = (
    "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "nvidia/DeepSeek-V3.1-NVFP4", "deepseek-ai/DeepSeek-V3.2",
    "zai-org/GLM-5", "zai-org/GLM-5-FP8", "nvidia/GLM-5-NVFP4",
)  # fmt: skip
_MLA_MODULE = (
    *_MLA,
    _dtype("gemm_dtype", "format of the projections", "bf16"),
    _choice("model", LATENT_MODELS, LATENT_MODELS[0], "whose widths the projections have"),
)

#: Of a convolution, also where its gradients are meant: the shapes are those of the forward pass.
_CONVOLUTION = (
    _size("batch_size", "images"),
    _size("in_channels", "channels read"),
    _size("out_channels", "channels written"),
    _size("height", "rows of the input"),
    _size("width", "columns of the input", "height"),
    _size("kernel_h", "rows of the filter"),
    _size("kernel_w", "columns of the filter", "kernel_h"),
    _size("stride", "step of the filter", 1),
    _size("padding", "rows and columns of zeros on each side", 0, 0),
    _size("dilation", "spacing of the filter's taps", 1),
    _size("groups", "independent groups of channels", 1),
    Column("channels_last", "size", 0, "1 where the channels of a pixel lie together", 0, 1),
    Column("autotuned", "size", 0, "1 where the library first tried its kernels out", 0, 1),
    Column("direct_groups", "size", 0, "1 where old libraries' direct kernel makes filters' gradients", 0, 1),
    _dtype("dtype", "format of the operands"),
)

_CONVOLVES = (
    Rule(
        ("height", "padding", "kernel_h", "dilation"),
        lambda rows, padding, taps, dilation: dilation * (taps - 1) < rows + 2 * padding,
        "the filter's rows must fit into the padded input",
    ),
    Rule(
        ("width", "padding", "kernel_w", "dilation"),
        lambda columns, padding, taps, dilation: dilation * (taps - 1) < columns + 2 * padding,
        "the filter's columns must fit into the padded input",
    ),
    _shared("in_channels", "groups"),
    _shared("out_channels", "groups"),
)
_GROUPED = (_shared("num_heads", "num_kv_heads"),)

REDUCTIONS = (
    "softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "sum", "max", "mean", "pool",
    "rms_norm_unit", "rms_norm_wide", "rms_norm_late", "add_rms_norm",
)  # fmt: skip
ELEMENTWISE = (
    "add", "mul", "div", "sub", "pow", "relu", "gelu", "silu", "tanh", "sigmoid", "exp", "scale", "cast",
    "bias", "glu", "rope", "mask", "dropout", "fused", "other", "gelu_new", "quick_gelu",
    "geglu", "geglu_new", "rope_partial", "rope_wide", "rope_halves", "rope_table",
)  # fmt: skip

#: Operations that are the same arithmetic as another and written otherwise in Python: eager code runs them in other
#: pieces, one kernel of them costs what one of the other costs.
WRITTEN_OTHERWISE: Mapping[str, str] = MappingProxyType(
    {
        "rms_norm_unit": "rms_norm",  # Gemma: the gain counts from one, in fp32
        "rms_norm_wide": "rms_norm",  # OLMo 2, gpt-oss: the gain is applied in fp32, before the cast down
        "rms_norm_late": "rms_norm",  # T5: what is scaled is the 16-bit input
        "add_rms_norm": "rms_norm",  # serving engines: a second tensor is added first, and the sum kept
        "geglu": "glu",  # gated by GELU
        "geglu_new": "glu",  # gated by GELU written out in Python
        "rope_partial": "rope",  # a part of each head is rotated and laid beside the rest
        "rope_wide": "rope",  # OLMo 2: rotated in fp32
        "rope_halves": "rope",  # gpt-oss: the halves of a head are rotated by themselves
        "rope_table": "other",  # sines and cosines of all places, which are small beside what they turn
    }
)


def plain_op(op: str) -> str:
    """The operation that `op` is in arithmetic, however it is written."""
    return WRITTEN_OTHERWISE.get(op, op)


#: Kinds that exchange data between GPUs.
EXCHANGES = ("nccl", "custom_allreduce")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "send_recv", "broadcast")
ROUTINGS = ("balanced", "power_law_1.01", "power_law_1.2")

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind(
                "gemm",
                (
                    _size("m", "tokens (rows of the result)"),
                    _size("n", "out features (columns of the result)"),
                    _size("k", "in features (the reduction)"),
                    _dtype("dtype", "format of the operands"),
                    _size("batch", "independent products, each with operands of its own", 1),
                    _ZERO_SHARE,
                ),
                split_out=("n",),
                split_in=("k",),
            ),
            Kind(
                "batched_gemm",
                (
                    _size("batch", "independent products (sequences x heads)"),
                    _size("m", "rows of each result"),
                    _size("n", "columns of each result"),
                    _size("k", "the reduction"),
                    _dtype("dtype", "format of the operands"),
                ),
                split_out=("batch",),
            ),
            Kind("context_attention", _CAUSAL_ATTENTION, split_out=("num_heads", "num_kv_heads"), rules=_GROUPED),
            Kind("generation_attention", _CAUSAL_ATTENTION, split_out=("num_heads", "num_kv_heads"), rules=_GROUPED),
            Kind(
                "encoder_attention",
                (
                    _size("batch_size", "sequences"),
                    _size("seq_len", "queries a sequence"),
                    _size("num_heads", "query heads"),
                    _size("head_dim", "width of a head"),
                    _size("num_kv_heads", "key and value heads", "num_heads"),
                    _size("kv_len", "keys a sequence (another length in cross attention)", "seq_len"),
                    _dtype("attn_dtype", "format of the attention arithmetic", "bf16"),
                ),
                split_out=("num_heads", "num_kv_heads"),
                rules=_GROUPED,
            ),
            Kind(
                "attention_backward",
                (
                    _size("batch_size", "sequences"),
                    _size("query_len", "queries a sequence"),
                    _size("kv_len", "keys a sequence", "query_len"),
                    _size("num_heads", "query heads"),
                    _size("num_kv_heads", "key and value heads", "num_heads"),
                    _size("head_dim", "width of a head"),
                    _size("value_dim", "width of a value head", "head_dim"),
                    _size("window_size", "keys a query sees, 0 = all before it", 0, 0),
                    Column("causal", "size", 1, "1: a query sees the keys up to its own, 0: all of them", 0, 1),
                    _dtype("attn_dtype", "format of the attention arithmetic", "bf16"),
                ),
                split_out=("num_heads", "num_kv_heads"),
                rules=_GROUPED,
            ),
            Kind(
                "moe",
                (
                    _size("num_tokens", "tokens of the whole expert group"),
                    _size("hidden_size", "width of the model"),
                    _size("inter_size", "width of one expert, before it is divided"),
                    _size("topk", "experts a token"),
                    _size("num_experts", "experts of the layer"),
                    _size("moe_tp_size", "GPUs that one expert is divided over", 1),
                    _size("moe_ep_size", "GPUs that the experts are spread over", 1),
                    _dtype("dtype", "format of the expert weights"),
                    _choice("distribution", ROUTINGS, "balanced", "how tokens spread over experts"),
                    Column("gated", "size", 1, "1: gate and up projections, 0: up alone", 0, 1),
                ),
                rules=(
                    Rule(
                        ("topk", "num_experts"),
                        lambda chosen, experts: chosen <= experts,
                        "topk must not exceed num_experts",
                    ),
                ),
            ),
            Kind("mla_context", _MLA, split_out=("num_heads",)),
            Kind("mla_generation", _MLA, split_out=("num_heads",)),
            Kind("mla_module_context", _MLA_MODULE, split_out=("num_heads",)),
            Kind("mla_module_generation", _MLA_MODULE, split_out=("num_heads",)),
            Kind("dsa_module_context", _MLA_MODULE, split_out=("num_heads",)),
            Kind("dsa_module_generation", _MLA_MODULE, split_out=("num_heads",)),
            Kind(
                "mla_bmm",
                (
                    _size("num_tokens", "tokens"),
                    _size("num_heads", "heads on this GPU"),
                    _choice("bmm_stage", ("pre", "post"), REQUIRED, "pre: 128 -> 512, post: 512 -> 128"),
                    _dtype("dtype", "format of the operands"),
                ),
                split_out=("num_heads",),
            ),
            Kind(
                "quantize",
                (
                    _size("m", "tokens"),
                    _size("k", "features"),
                    _choice(
                        "quant_op", ("static_quant", "dynamic_quant"), "dynamic_quant", "where the scale comes from"
                    ),
                    _dtype("dtype", "format of the result", "fp8"),
                ),
                split_out=("k",),
            ),
            Kind(
                "linear_attention_gdn",
                (
                    _choice("phase", ("context", "generation"), REQUIRED, "prefill or decode"),
                    _size("batch_size", "sequences"),
                    _size("seq_len", "new tokens a sequence", 1),
                    _size("d_model", "width of the model"),
                    _size("num_k_heads", "key heads"),
                    _size("num_v_heads", "value heads"),
                    _size("head_k_dim", "width of a key head", 128),
                    _size("head_v_dim", "width of a value head", 128),
                    _size("d_conv", "taps of the short convolution", 4),
                    _choice(
                        "kernel_source",
                        (
                            "causal_conv1d_fn",
                            "causal_conv1d_update",
                            "chunk_gated_delta_rule",
                            "fused_recurrent_gated_delta_rule",
                        ),
                        REQUIRED,
                        "which kernel of the layer",
                    ),
                ),
                split_out=("num_k_heads", "num_v_heads"),
                rules=(_shared("num_v_heads", "num_k_heads"),),
            ),
            Kind(
                "linear_attention_mamba2",
                (
                    _choice("phase", ("context", "generation"), REQUIRED, "prefill or decode"),
                    _size("batch_size", "sequences"),
                    _size("seq_len", "new tokens a sequence", 1),
                    _size("d_model", "width of the model"),
                    _size("d_state", "state a head channel"),
                    _size("nheads", "heads"),
                    _size("n_groups", "groups that share B and C"),
                    _size("head_dim", "width of a head", 64),
                    _size("chunk_size", "tokens a chunk of the scan", 256),
                    _size("d_conv", "taps of the short convolution", 4),
                    _choice(
                        "kernel_source",
                        (
                            "causal_conv1d_fn",
                            "causal_conv1d_update",
                            "mamba_chunk_scan_combined",
                            "selective_state_update",
                        ),
                        REQUIRED,
                        "which kernel of the layer",
                    ),
                ),
                split_out=("nheads", "n_groups"),
                rules=(_shared("nheads", "n_groups"),),
            ),
            Kind(
                "nccl",
                (
                    _choice("collective", COLLECTIVES, REQUIRED, "what is exchanged"),
                    _size("num_gpus", "ranks"),
                    _size("message_bytes", "full buffer of one rank [B]"),
                    _dtype("dtype", "format of the elements", "fp16"),
                ),
            ),
            Kind(
                "custom_allreduce",
                (
                    _size("num_gpus", "ranks"),
                    _size("message_bytes", "buffer of one rank [B]"),
                    _dtype("dtype", "format of the elements", "bf16"),
                ),
            ),
            Kind(
                "row_reduction",
                (
                    _choice("op", REDUCTIONS, REQUIRED, "which reduction"),
                    _size("rows", "independent rows"),
                    _size("dim", "elements a row"),
                    _dtype("dtype", "format in memory"),
                    _size("inputs", "tensors read, each of rows x dim elements (2: a gradient)", 1),
                ),
                split_out=("rows",),
            ),
            Kind(
                "elementwise",
                (
                    _choice("op", ELEMENTWISE, "other", "what is computed"),
                    _size("elements", "elements of the result"),
                    _size("inputs", "tensors read, each of as many elements", 1, 0),
                    _size("outputs", "tensors written", 1),
                    Column("flop_per_element", "real", 1, "arithmetic an element [FLOP]", 0),
                    _dtype("dtype", "format read"),
                    _dtype("out_dtype", "format written", "dtype"),
                ),
                split_out=("elements",),
            ),
            Kind("conv2d", (*_CONVOLUTION, _ZERO_SHARE), ("out_channels",), ("in_channels",), _CONVOLVES),
            Kind("conv2d_data_gradient", _CONVOLUTION, ("in_channels",), ("out_channels",), _CONVOLVES),
            Kind("conv2d_weight_gradient", _CONVOLUTION, split_out=("out_channels",), rules=_CONVOLVES),
            Kind(
                "gather",
                (
                    _size("rows", "rows fetched"),
                    _size("dim", "elements a row"),
                    _size("table_rows", "rows of the table", 2.0**20),
                    _dtype("dtype", "format in memory"),
                ),
            ),
            Kind(
                "copy",
                (
                    _size("elements", "elements moved"),
                    _dtype("dtype", "format read"),
                    _dtype("out_dtype", "format written", "dtype"),
                    _size("parts", "tensors of that together, which eager code copies one by one", 1),
                ),
                split_out=("elements",),
            ),
        )
    }
)


def kind(name: str) -> Kind:
    """The kind of operation called `name`; `UnknownNameError` if there is none."""
    found = KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownNameError("operation", name, KINDS)
    return found
