"""What is looked for in an ONNX graph before it is priced, in order, and what is told of it."""

from __future__ import annotations

from joulecast.workloads.onnx_heads import fused_attention
from joulecast.workloads.onnx_patterns import (
    Pattern,
    activations,
    biases,
    folded_convolutions,
    integer_ends,
    norms,
)
from joulecast.workloads.onnx_quantised import in_few_bits

#: Patterns and the note where one was found.
PASSES: tuple[tuple[Pattern, str], ...] = (
    (folded_convolutions, "batch norms are folded into convolutions, and ReLUs run with them, as ONNX Runtime does"),
    (in_few_bits, "quantised: operators between dequantising and quantising run in few bits"),
    (norms, ""),
    (activations, ""),
    (integer_ends, ""),
    (biases, ""),
    (fused_attention, "attention written in pieces is priced fused: attention='eager' prices it as written"),
)
