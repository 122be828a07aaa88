"""Description of decoder language models in numbers: one for all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values are kept as one latent vector a token."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in place of the MLP of `num_layers` layers.

    Attributes
    ----------
    num_experts, topk, inter_size : int
    num_layers : int
        Layers that have it; the others have the plain MLP.
    shared_inter_size : int
        Width of the experts that every token passes, together; 0 for none.
    shared_gate : bool
        Whether their output is scaled by a learned gate.
    scoring : str
        ``softmax`` or ``sigmoid`` of the router's scores.
    wide_router : bool
        Whether the router multiplies in fp32.
    router_bias, score_bias, bias : bool
        Bias of the router, correction bias of the selection, biases of the experts.
    format : str
        Format in which the checkpoint holds the experts, where it is another than the model's.
    """

    num_experts: int
    topk: int
    inter_size: int
    num_layers: int
    shared_inter_size: int = 0
    shared_gate: bool = False
    scoring: str = "softmax"
    wide_router: bool = False
    router_bias: bool = False
    score_bias: bool = False
    bias: bool = False
    format: str = ""


@dataclass(frozen=True)
class Decoder:
    """A decoder language model in numbers.

    Attributes
    ----------
    family : str
        The model type.
    vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim, inter_size : int
    limit : int or None
        Most tokens a sequence; None where positions are not bounded.
    norm : str
        ``layer_norm``, ``rms_norm`` or one of the ways to write that.
    norms : str
        Where norms stand: ``pre`` (before attention and MLP), ``post_add`` (after each residual sum),
        ``post`` (after attention and MLP), ``sandwich`` (both sides), ``shared`` (one for both, which run
        side by side), ``parallel`` (one each, side by side).
    qk_norm : str
        Norm of queries and keys: none, ``head`` or ``full`` (over all heads together).
    windows : tuple of (int, int)
        (keys that a query sees, number of layers); 0 keys: all before it.
    rotary_dim : int
        Width of a head that is rotated; 0 for none.
    rope : str
        How the rotation is written, where all of a head is rotated: ``rope``, ``rope_wide`` or ``rope_halves``.
    rope_tables : int
        Sets of sines and cosines: one for each base that layers rotate with.
    position_rows : int
        Rows of the table of learned positions; 0 for none.
    counted_positions : bool
        Whether each sequence's positions are counted from its mask, instead of being the same for all.
    embedding_dim : int
        Width of the vocabulary vectors where it differs from `hidden_size` (projected both ways); else 0.
    extra_parameters : int
        Parameters that are stored and not run here (an image encoder).
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inter_size: int
    limit: int | None
    norm: str = "rms_norm"
    norm_bias: bool = False
    norms: str = "pre"
    final_norm: bool = True
    qk_norm: str = ""
    fused_qkv: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    scaled_query: bool = False
    sinks: bool = False
    rotary_dim: int = 0
    rope: str = "rope"
    rope_tables: int = 1
    windows: tuple[tuple[int, int], ...] = ()
    activation: str = "silu"
    gated: bool = True
    fused_gate_up: bool = False
    mlp_bias: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    position_rows: int = 0
    counted_positions: bool = False
    embedding_dim: int = 0
    embedding_norm: bool = False
    scaled_embedding: bool = False
    tied: bool = False
    head_bias: bool = False
    capped_logits: bool = False
    extra_parameters: int = 0
    notes: tuple[str, ...] = ()

    @property
    def cached_elements(self) -> int:
        """Elements that one token leaves in the cache of one layer."""
        if self.mla:
            return self.mla.kv_rank + self.mla.rope_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def layer_windows(self) -> tuple[tuple[int, int], ...]:
        """`windows`, or all layers without one."""
        return self.windows or ((0, self.num_layers),)
