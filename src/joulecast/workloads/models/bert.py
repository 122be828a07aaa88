"""Encoders of text: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ALBERT."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.workloads.config import Config
from joulecast.workloads.models.net import Net, activation, no_generation, token_counts
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Encoder:
    """A transformer encoder in numbers.

    Attributes
    ----------
    vocab_size, hidden_size, num_layers, num_heads, inter_size : int
    position_rows, limit : int
        Rows of the table of positions, and the tokens a sequence that it serves.
    type_rows : int
        Rows of the table of token types; 0 for none.
    embedding_size : int
        Width of the embeddings; projected to `hidden_size` where it differs.
    stored_layers : int
        Layers with weights of their own; the others run these again.
    activation : str
    pooler : bool
        Whether the model has a pooler.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    inter_size: int
    position_rows: int
    limit: int
    type_rows: int
    embedding_size: int
    stored_layers: int
    activation: str
    pooler: bool


def _encoder(config: Config, request: Request, model: Encoder) -> Workload:
    no_generation(config, request, "an encoder")
    prompt = token_counts(config, request, model.limit)
    net = Net(config.name, request)
    tokens = request.batch * prompt
    net.begin_pass("forward", tokens=tokens)
    hidden, width = model.hidden_size, model.embedding_size
    net.embedding("embeddings.tokens", tokens, width, model.vocab_size)
    if model.type_rows:
        net.embedding("embeddings.token_types", tokens, width, model.type_rows)
        net.elementwise("add", "embeddings.add_types", tokens * width, inputs=2)
    if model.limit < model.position_rows:  # positions are counted from the tokens that are no padding
        net.counted_positions("embeddings.position_ids", tokens)
        net.embedding("embeddings.positions", tokens, width, model.position_rows)
        net.elementwise("add", "embeddings.add_positions", tokens * width, inputs=2)
    else:
        net.positions("embeddings.positions", "embeddings.add_positions", prompt, width, model.position_rows)
    net.norm("layer_norm", "embeddings.norm", tokens, width, bias=True)
    if width != hidden:
        net.linear("embeddings.project", tokens, width, hidden, bias=True)
    _emit_layers(net, model, prompt)
    if model.pooler:
        if request.pooler:
            net.linear("pooler", request.batch, hidden, hidden, bias=True)
            net.elementwise("tanh", "pooler.activation", request.batch * hidden)
        else:
            net.weight(hidden * hidden + hidden, format=request.gemm_dtype)
    net.stream_elements = tokens * hidden
    return net.build(
        info={
            "family": config.word("model_type"),
            "prompt_tokens": prompt,
            "vocab_size": model.vocab_size,
            "hidden_size": hidden,
            "num_layers": model.num_layers,
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_heads,
            "kv_bytes_per_token": 0.0,
            "max_tokens": model.limit,
        }
    )


def _emit_layers(net: Net, model: Encoder, length: int) -> None:
    tokens = net.request.batch * length
    hidden, inter, count, stored = model.hidden_size, model.inter_size, model.num_layers, model.stored_layers
    attention = "layers.*.attention"
    for name in ("q_proj", "k_proj", "v_proj"):
        net.linear(f"{attention}.{name}", tokens, hidden, hidden, bias=True, count=count, stored=stored, shard="out")
    net.op(
        "encoder_attention",
        f"{attention}.core",
        count=count,
        shard="out",
        batch_size=net.request.batch,
        seq_len=length,
        num_heads=model.num_heads,
        head_dim=max(1, hidden // model.num_heads),
        attn_dtype=net.request.attention_dtype,
    )
    net.linear(f"{attention}.o_proj", tokens, hidden, hidden, bias=True, count=count, stored=stored, shard="in")
    net.elementwise("add", "layers.*.attention_residual", tokens * hidden, inputs=2, count=count)
    net.norm("layer_norm", "layers.*.attention_norm", tokens, hidden, bias=True, count=count, stored=stored)
    net.linear("layers.*.mlp.up_proj", tokens, hidden, inter, bias=True, count=count, stored=stored, shard="out")
    net.elementwise(model.activation, "layers.*.mlp.activation", tokens * inter, count=count, shard="out")
    net.linear("layers.*.mlp.down_proj", tokens, inter, hidden, bias=True, count=count, stored=stored, shard="in")
    net.elementwise("add", "layers.*.mlp_residual", tokens * hidden, inputs=2, count=count)
    net.norm("layer_norm", "layers.*.mlp_norm", tokens, hidden, bias=True, count=count, stored=stored)


def _bert(config: Config, request: Request, *, reserved_positions: int = 0) -> Workload:
    hidden = config.size("hidden_size")
    layers = config.layers("num_hidden_layers")
    rows = config.size("max_position_embeddings", default=512)
    model = Encoder(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=config.size("num_attention_heads"),
        inter_size=config.size("intermediate_size"),
        position_rows=rows,
        limit=max(1, rows - reserved_positions),
        type_rows=config.size("type_vocab_size", default=2, minimum=0),
        embedding_size=hidden,
        stored_layers=layers,
        activation=activation(config, "hidden_act", default="gelu"),
        pooler=True,
    )
    return _encoder(config, request, model)


def _roberta(config: Config, request: Request) -> Workload:
    # Positions count from the padding index, 1, so that two rows are never used.
    return _bert(config, request, reserved_positions=2)


def _distilbert(config: Config, request: Request) -> Workload:
    hidden = config.size("dim", "hidden_size")
    layers = config.layers("n_layers", "num_hidden_layers")
    rows = config.size("max_position_embeddings", default=512)
    model = Encoder(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=config.size("n_heads", "num_attention_heads"),
        inter_size=config.size("hidden_dim", "intermediate_size"),
        position_rows=rows,
        limit=rows,
        type_rows=0,
        embedding_size=hidden,
        stored_layers=layers,
        activation=activation(config, "activation", default="gelu"),
        pooler=False,
    )
    return _encoder(config, request, model)


def _albert(config: Config, request: Request) -> Workload:
    # A group's `inner_group_num` layers run one after another each time that the group comes up.
    inner = config.size("inner_group_num", default=1, maximum=2**10)
    rows = config.size("max_position_embeddings", default=512)
    model = Encoder(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_layers=config.layers("num_hidden_layers") * inner,
        num_heads=config.size("num_attention_heads"),
        inter_size=config.size("intermediate_size"),
        position_rows=rows,
        limit=rows,
        type_rows=config.size("type_vocab_size", default=2, minimum=0),
        embedding_size=config.size("embedding_size", default=128),
        stored_layers=config.size("num_hidden_groups", default=1, maximum=2**14) * inner,
        activation=activation(config, "hidden_act", default="gelu_new"),
        pooler=True,
    )
    return _encoder(config, request, model)


BUILDERS = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
}
