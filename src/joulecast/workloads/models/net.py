"""`Net`: emits the operations of a model and keeps account of its weights and of what is alive in memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InputError, shortened
from joulecast.workloads.config import Config
from joulecast.workloads.request import Request
from joulecast.workloads.table import Memory, Workload, WorkloadBuilder

#: Arithmetic of one element of each activation [FLOP]; erf and exp counted as about eight.
ACTIVATION_FLOP: Mapping[str, float] = MappingProxyType(
    {"relu": 1, "gelu": 10, "silu": 10, "tanh": 10, "sigmoid": 10, "gelu_new": 10, "quick_gelu": 10}
)
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_new", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "quick_gelu", "gelu_10": "gelu", "silu": "silu", "swish": "silu", "swiglu": "silu", "relu": "relu",
    "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip


def activation(config: Config, *keys: str, default: str = "") -> str:
    """The elementwise operation that the activation named in a config stands for."""
    named = next((config.word(key) for key in keys if key in config), default)
    if named not in _ACTIVATIONS:
        raise config.error(f"unknown activation {shortened(named, 40)!r}: known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[named]


class Net:
    """A workload in the making: a `WorkloadBuilder` that also counts parameters and memory.

    Each method adds one operation that runs `count` times a pass, and its weights `stored` times (as often
    as it runs, by default). Weights are counted in the first pass only: later passes run the same ones.

    Notes
    -----
    The memory of activations is an estimate of what is alive at once: twice the stream between
    layers (`stream_elements`; an operation's input and the residual beside it) and the inputs and
    outputs of the operation that has most of them. Eager attention's scores are not in it.
    """

    def __init__(self, name: str, request: Request) -> None:
        self.request = request
        self.builder = WorkloadBuilder(name)
        self.parameters = 0
        self.weights_bytes = 0.0
        self.stream_elements = 0
        self.kv_cache_bytes = 0.0
        self.expert_dtype = request.gemm_dtype
        self._biased: dict[str, None] = {}
        self._largest_elements = 0
        self._counting = True
        self._act_bytes = dtype(request.activation_dtype).activation_bytes

    def begin_pass(self, phase: str, *, repeats: float = 1, tokens: float) -> None:
        """Start a pass; see `WorkloadBuilder.begin_pass`."""
        self._counting = not self.builder.passes
        self.builder.begin_pass(phase, repeats=repeats, tokens=tokens)

    def weight(self, elements: int, *, stored: float = 1, format: str | None = None) -> None:
        """Count `elements` parameters, `stored` times; in the format of activations unless told."""
        if self._counting:
            held = self._act_bytes if format is None else dtype(format).weight_bytes
            self.parameters += elements * int(stored)
            self.weights_bytes += elements * stored * held

    def linear(
        self,
        layer: str,
        rows: int,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        count: float = 1,
        stored: float | None = None,
        shard: str = "none",
        head: bool = False,
        wide: bool = False,
    ) -> None:
        """A dense layer; its bias is added by the multiply. `head`: one that stays in 16 bit; `wide`: run in fp32."""
        multiplied = self.request.head_dtype if head else self.request.gemm_dtype
        held = count if stored is None else stored
        self.weight(inputs * outputs, stored=held, format=multiplied)
        if wide and multiplied != "fp32":
            cast = {"op": "cast", "dtype": self.act, "out_dtype": "fp32"}
            self.op("elementwise", f"{layer}.cast", count=count, elements=rows * inputs, **cast)
            self.op("elementwise", f"{layer}.cast_weights", count=count, elements=inputs * outputs, **cast)
            multiplied = "fp32"
        if bias:
            self.weight(outputs, stored=held)
            self._biased[layer] = None
        self.builder.add("gemm", layer=layer, count=count, shard=shard, m=rows, n=outputs, k=inputs, dtype=multiplied)
        self._alive(rows * (inputs + outputs))

    def norm(
        self,
        op: str,
        layer: str,
        rows: int,
        dim: int,
        *,
        bias: bool = False,
        count: float = 1,
        stored: float | None = None,
        shard: str = "none",
    ) -> None:
        """A layer norm or RMS norm over rows of `dim`, with a gain and perhaps a bias."""
        self.weight(dim * (2 if bias else 1), stored=count if stored is None else stored)
        self.reduction(op, layer, rows, dim, count=count, shard=shard)

    def reduction(self, op: str, layer: str, rows: int, dim: int, *, count: float = 1, shard: str = "none") -> None:
        """A reduction of rows without weights: softmax, pooling, maximum."""
        self.builder.add(
            "row_reduction", layer=layer, count=count, shard=shard, op=op, rows=rows, dim=dim, dtype=self.act
        )

    def positions(self, layer: str, added: str, length: int, dim: int, table_rows: int) -> None:
        """Learned positions of `length` tokens, the same for all sequences, and their sum with the stream (`added`)."""
        self.embedding(layer, length, dim, table_rows)
        self.add_alike(added, length * dim)

    def add_alike(self, layer: str, elements: int) -> None:
        """A sum with `elements` that are the same for all sequences: small beside the stream of more than two."""
        self.elementwise("add", layer, self.request.batch * elements, inputs=1 if self.request.batch > 2 else 2)

    def embedding(
        self, layer: str, rows: int, dim: int, table_rows: int, *, count: float = 1, stored: float | None = None
    ) -> None:
        """Rows fetched from a table of learned vectors."""
        self.weight(dim * table_rows, stored=count if stored is None else stored)
        self.builder.add("gather", layer=layer, count=count, rows=rows, dim=dim, table_rows=table_rows, dtype=self.act)

    def elementwise(
        self,
        op: str,
        layer: str,
        elements: int,
        *,
        inputs: int = 1,
        count: float = 1,
        shard: str = "none",
        flop: float | None = None,
    ) -> None:
        """One operation on each of `elements`; its arithmetic by `ACTIVATION_FLOP`, else 1 an element."""
        self.builder.add(
            "elementwise",
            layer=layer,
            count=count,
            shard=shard,
            op=op,
            elements=elements,
            inputs=inputs,
            flop_per_element=ACTIVATION_FLOP.get(op, 1) if flop is None else flop,
            dtype=self.act,
        )

    def chain(self, layer: str, elements: int, steps: str, *, count: float = 1) -> None:
        """Elementwise operations one after the other, on integers too.

        `steps` are words of the operation and the formats it reads and writes, such as ``cast:int8>fp32``; in fp64
        (or 64-bit integers) where none is given. A number before the word is that of its inputs, 1 by default.
        """
        for step in steps.split():
            word, _, formats = step.partition(":")
            read, _, written = (formats or "fp64").partition(">")
            inputs = int(word[0]) if word[0].isdigit() else 1
            op = word.lstrip("0123456789")
            self.op(
                "elementwise", layer, count=count, op=op, elements=elements, inputs=inputs, flop_per_element=1,
                dtype=read, out_dtype=written or read,
            )  # fmt: skip

    def counted_positions(self, layer: str, tokens: int) -> None:
        """Places of tokens that are no padding: compared, summed up along the sequence, and looked up."""
        self.chain(layer, tokens, "other:fp64>int8 cast:int8>fp32 other:fp32>fp64 cast:fp64>fp32 add:fp32 2mul:fp32")
        self.chain(layer, tokens, "cast:fp32>fp64 add")
        self.op("gather", layer, rows=tokens, dim=1, table_rows=tokens, dtype="fp64")

    def glu(self, act: str, layer: str, elements: int, *, count: float = 1) -> None:
        """The gate of a gated MLP: activation of one half times the other."""
        op = {"gelu": "geglu", "gelu_new": "geglu_new"}.get(act, "glu")
        self.elementwise(op, layer, elements, inputs=2, count=count, shard="out", flop=ACTIVATION_FLOP[act] + 1)

    def copy(
        self,
        layer: str,
        elements: int,
        *,
        count: float = 1,
        shard: str = "none",
        out_dtype: str | None = None,
        parts: int = 1,
    ) -> None:
        """A copy into another place or layout, of `parts` tensors together."""
        self.builder.add(
            "copy",
            layer=layer,
            count=count,
            shard=shard,
            elements=elements,
            dtype=self.act,
            out_dtype=out_dtype,
            parts=parts,
        )

    def op(self, kind: str, layer: str, *, count: float = 1, shard: str = "none", **columns: Any) -> None:
        """Any other operation, by the columns of its kind."""
        self.builder.add(kind, layer=layer, count=count, shard=shard, **columns)

    def conv(
        self,
        layer: str,
        images: int,
        channels: tuple[int, int],
        size: tuple[int, int],
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = False,
        channels_last: bool = False,
        count: float = 1,
    ) -> tuple[int, int]:
        """A convolution over `size` (rows, columns) from channels in to out; returns the output's size.

        `channels_last`: whether the channels of a pixel lie together in what it reads.

        Raises
        ------
        InputError
            If the filter is larger than the padded image.
        """
        inputs, outputs = channels
        if inputs % groups or outputs % groups:
            raise InputError(f"{layer}: {inputs} and {outputs} channels do not divide into {groups} groups")
        height, width = ((n + 2 * padding - k) // stride + 1 for n, k in zip(size, kernel, strict=True))
        if height < 1 or width < 1:
            image, filter_size = f"{size[0]} x {size[1]}", f"{kernel[0]} x {kernel[1]}"
            raise InputError(f"an image of {image} at {layer} is smaller than its {filter_size} filter")
        self.weight(inputs // groups * outputs * kernel[0] * kernel[1], stored=count, format=self.request.gemm_dtype)
        if bias:
            self.weight(outputs, stored=count)
        self.builder.add(
            "conv2d",
            layer=layer,
            count=count,
            batch_size=images,
            in_channels=inputs,
            out_channels=outputs,
            height=size[0],
            width=size[1],
            kernel_h=kernel[0],
            kernel_w=kernel[1],
            stride=stride,
            padding=padding,
            groups=groups,
            channels_last=int(channels_last),
            dtype=self.request.gemm_dtype,
        )
        if bias:
            # eager frameworks add it in a launch of its own
            self.elementwise("bias", f"{layer}.bias", images * outputs * height * width, count=count)
        self._alive(images * (inputs * size[0] * size[1] + outputs * height * width))
        return height, width

    def experts(
        self,
        layer: str,
        tokens: int,
        hidden: int,
        inter: int,
        *,
        topk: int,
        experts: int,
        bias: bool = False,
        count: float = 1,
    ) -> None:
        """The routed experts of a layer: gated MLPs, `topk` of them for each token.

        Layouts divide them by columns of their own, so that they are marked whole here.
        """
        self.weight(3 * hidden * inter * experts, stored=count, format=self.expert_dtype)
        if bias:
            self.weight((2 * inter + hidden) * experts, stored=count)
        self.builder.add(
            "moe",
            layer=layer,
            count=count,
            num_tokens=tokens,
            hidden_size=hidden,
            inter_size=inter,
            topk=topk,
            num_experts=experts,
            dtype=self.expert_dtype,
        )
        self._alive(tokens * topk * (2 * inter + hidden))

    @property
    def act(self) -> str:
        """Format of the activations."""
        return self.request.activation_dtype

    def build(self, *, info: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Workload:
        """The workload, with its parameters and memory."""
        alive = float((2 * self.stream_elements + self._largest_elements) * self._act_bytes)
        request = self.request
        facts = {
            "model": self.builder.name,
            "dtype": request.dtype,
            "weight_dtype": request.weight_dtype or request.dtype,
            "kv_cache_dtype": request.cache_dtype,
            "batch": request.batch,
            "generate_tokens": request.generate_tokens,
            **info,
        }
        return self.builder.build(
            memory=Memory(self.weights_bytes, self.kv_cache_bytes, alive),
            parameters=float(self.parameters),
            info=MappingProxyType(facts),
            notes=notes,
            biased=tuple(self._biased),
        )

    def _alive(self, elements: int) -> None:
        self._largest_elements = max(self._largest_elements, elements)


def token_counts(config: Config, request: Request, limit: int | None, default: int = 512) -> int:
    """Prompt tokens a sequence, checked with the tokens to generate against the model's limit.

    Raises
    ------
    InputError
        If prompt and generated tokens exceed `limit` (None: no limit).
    """
    prompt = request.prompt_tokens
    if prompt is None:
        room = default if limit is None else limit - request.generate_tokens
        prompt = max(1, min(default, room))
    if limit is not None and prompt + request.generate_tokens > limit:
        more = f" + {request.generate_tokens} generated" if request.generate_tokens else ""
        raise InputError(f"{shortened(config.name)} takes at most {limit} tokens a sequence, asked for {prompt}{more}")
    return prompt


def no_generation(config: Config, request: Request, what: str) -> None:
    """Refuse tokens to generate of a model that generates none."""
    if request.generate_tokens:
        raise InputError(f"{shortened(config.name)} is {what} and generates no tokens: leave generate_tokens at 0")


def decode_steps(prompt: int, generate: int) -> list[tuple[int, int]]:
    """Decoding steps of a generation as a few (cached tokens, number of steps like it).

    A generation of T tokens takes T - 1 decoding steps; step i reads a cache of ``prompt + i - 1``.
    They are cut into runs of neighbours of odd length, each standing at its middle, so that all that is
    linear in the cache's length is exact: four runs where the number of steps is even, five where odd
    (fewer where there are fewer steps).

    Returns
    -------
    list of tuple of int
    """
    steps = max(generate - 1, 0)
    runs = min(4, steps) if steps % 2 == 0 else min(5, steps)
    out = []
    start = 0
    for index in range(runs):
        # Pairs beyond one step a run are spread evenly, which keeps every length odd.
        pairs = (steps - runs) // 2
        length = 1 + 2 * (pairs // runs + (1 if index < pairs % runs else 0))
        out.append((prompt + start + length // 2, length))
        start += length
    return out
