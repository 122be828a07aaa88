"""Restoring what EnergAIzer traces leave out: the launches a Hugging Face model in eager PyTorch makes besides.

The traces log matrix products, convolutions, softmax, layer norm and some pointwise functions. Missing are
embeddings, copies, concatenations, means, in-place functions, batch norms, pooling and most casts. Each rule
here recognises a structure in the sequence of kernels and adds what the framework launches around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from joulecast.workloads.energaizer_ops import Draft, TracedOp, TraceShape


def restored(
    ops: Sequence[TracedOp], shape: TraceShape, *, conv1d: bool = False
) -> tuple[list[TracedOp], tuple[str, ...]]:
    """The launches of the pass with what the trace leaves out, and notes that tell what was added.

    Parameters
    ----------
    ops : sequence of TracedOp
        The kernels of a trace.
    shape : TraceShape
        Of the same kernels.
    conv1d : bool
        The linear layers are GPT-2's, whose causal mask is a `where` that the format leaves out.

    Returns
    -------
    ops : list of TracedOp
        In the order launched; added ones have `added` set.
    notes : tuple of str
    """
    draft = Draft(_softmax_casts_in_order(list(ops)), shape)
    for rule in (_rms_norms, _rotary_tables, _embeddings, _convolutions, _patches):
        rule(draft)
    _attentions(draft, conv1d)
    out: list[TracedOp] = []
    for before, op, after in zip(draft.before, draft.ops, draft.after, strict=True):
        out += [*before, op, *after]
    notes = tuple(
        what.removeprefix("!").replace("#", str(n)) if what.startswith("!")
        else f"restored, since the trace leaves them out: {n} {what}"
        for what, n in draft.counts.items()
    )  # fmt: skip
    return out, notes


def _softmax_casts_in_order(ops: list[TracedOp]) -> list[TracedOp]:
    """A fp32 softmax between its casts; the traces log the three in varying order."""
    for i in range(len(ops) - 2):
        window = ops[i : i + 3]
        casts = [op for op in window if op.is_elementwise("cast")]
        softmax = [op for op in window if op.is_reduction("softmax") and op["dtype"] == "fp32"]
        if len(casts) == 2 and len(softmax) == 1:
            casts.sort(key=lambda op: op["dtype"] == "fp32")
            ops[i : i + 3] = [casts[0], softmax[0], casts[1]]
    return ops


def _rms_norms(draft: Draft) -> None:
    """RMS norm is cast, square, mean, add epsilon, rsqrt, multiply, cast, weight; casts and mean are missing."""
    for i in range(len(draft.ops) - 4):
        square, eps, rsqrt, scale, weight = draft.ops[i : i + 5]
        if not (square.is_elementwise("other") and eps.is_elementwise("add") and rsqrt.is_elementwise("other")):
            continue
        if not (scale.is_elementwise("mul") and weight.is_elementwise("scale", "mul")):
            continue
        elements, rows = square["elements"], eps["elements"]
        alike = elements == scale["elements"] == weight["elements"] and rows == rsqrt["elements"]
        if not alike or elements <= rows or elements % rows:
            continue
        narrow = weight["dtype"]
        draft.change(i, op="pow")
        draft.change(i + 3, inputs=1)  # times one number a row
        draft.change(i + 4, op="scale", inputs=1)
        if square["dtype"] != narrow:
            _cast(draft, "casts around RMS norms", i, elements, narrow, square["dtype"])
            _cast(draft, "casts around RMS norms", i + 4, elements, square["dtype"], narrow)
        draft.add("means of RMS norms", i, "row_reduction", after=True, op="mean", rows=rows,
                  dim=elements // rows, dtype=square["dtype"])  # fmt: skip


def _cast(draft: Draft, what: str, index: int, elements: int, read: str, written: str, *, after: bool = False) -> None:
    draft.add(what, index, "elementwise", after=after, op="cast", elements=elements, dtype=read, out_dtype=written)


def _rotary_tables(draft: Draft) -> None:
    """Angles are doubled by a concatenation; cosine and sine are taken in fp32, scaled, and cast."""
    for i in range(len(draft.ops) - 2):
        angles, cosine, sine = draft.ops[i : i + 3]
        outer_product = angles.kind == "gemm" and angles["k"] == 1
        if not (outer_product and cosine.is_elementwise("scale") and sine.columns == cosine.columns):
            continue
        elements, what = cosine["elements"], "launches for the rotary tables"
        draft.copy(what, i + 1, elements, dtype=angles["dtype"])
        for index in (i + 1, i + 2):
            draft.add(what, index, "elementwise", op="other", elements=elements, dtype=angles["dtype"])
        for _ in range(2 if angles["dtype"] != draft.shape.dtype else 0):
            _cast(draft, what, i + 2, elements, angles["dtype"], draft.shape.dtype, after=True)


def _embeddings(draft: Draft) -> None:
    """Token, position and token-type look-ups of a language model, and the masks built once a pass."""
    shape = draft.shape
    linear = (i for i, op in enumerate(draft.ops) if op.kind == "gemm" and op["k"] > 1 and op["m"] == shape.tokens)
    first = next(linear, None)
    if shape.images or not shape.sequence or first is None:
        return
    hidden = draft.ops[first]["k"]
    width = shape.tokens * hidden
    adds = [i for i in range(first) if draft.ops[i].is_elementwise("add") and draft.ops[i]["elements"] == width]
    has_types = draft.ops[-1].is_elementwise("tanh")  # a pooler: BERT, whose embeddings have token types
    gathers = [shape.tokens] * (1 + len(adds))
    if has_types and adds:
        gathers.append(shape.sequence)  # positions are looked up once for the whole batch
        draft.add("in-place additions of embeddings", adds[-1], "elementwise", after=True, op="add", elements=width,
                  inputs=2, dtype=shape.dtype)  # fmt: skip
    for rows in gathers:
        draft.add("embedding look-ups", adds[0] if adds else 0, "gather", rows=rows, dim=hidden, dtype=shape.dtype)
    _mask_building(draft, first, has_types)


def _mask_building(draft: Draft, first: int, is_bert: bool) -> None:
    """Small launches before the first layer (at the linear layer `first`) that make the attention mask."""
    shape, what = draft.shape, "small launches that build the attention mask"
    dtype, scores = shape.dtype, shape.sequence**2
    early = [(i, draft.ops[i]) for i in range(first) if draft.ops[i].is_elementwise("add", "scale")]
    padding = [i for i, op in early if op["op"] == "add" and op["elements"] == shape.batch * scores]
    key_mask = [i for i, op in early if op["op"] == "scale" and op["elements"] == shape.tokens]
    if is_bert and key_mask:  # cast of the key mask, and one of the two steps of (1 - mask) * minimum
        draft.add(what, key_mask[0], "elementwise", op="mask", elements=shape.tokens, dtype=dtype)
        draft.add(what, key_mask[0], "elementwise", op="scale", elements=shape.tokens, dtype=dtype)
    elif any(_is_mask(draft, i) for i in range(first, len(draft.ops))):
        at = padding[0] if padding else first
        for inputs in (0, 1, 0, 2):  # fill, upper triangle, comparison, product
            draft.add(what, at, "elementwise", op="mask", elements=scores, inputs=inputs, dtype=dtype)
        if padding:  # the causal mask is cloned for each sequence, its padding masked out, positions counted
            elements = shape.batch * scores
            draft.copy(what, at, elements)
            for _ in range(3):
                draft.add(what, at, "elementwise", after=True, op="mask", elements=elements, dtype=dtype)
            draft.add(
                what, at, "row_reduction", after=True, op="sum", rows=shape.batch, dim=shape.sequence, dtype="fp32"
            )
            for _ in range(2):
                draft.add(what, at, "elementwise", after=True, op="add", elements=shape.tokens, dtype="fp32")


def _is_mask(draft: Draft, index: int) -> bool:
    """Whether an addition is that of a mask to attention scores: between the scores and their softmax."""
    op = draft.ops[index]
    if not op.is_elementwise("add") or op["inputs"] != 2:
        return False
    back = index - 1
    while back >= 0 and index - back <= 3 and draft.ops[back].is_elementwise("scale", "other", "div"):
        back -= 1
    scores = draft.at(back)
    return scores is not None and scores.kind == "batched_gemm" and scores.results == op["elements"]


def _attentions(draft: Draft, conv1d: bool) -> None:
    """Copies, masks and rotary halves around each product of queries and keys, up to the product with values."""
    i = 0
    while i < len(draft.ops):
        found = _attention_at(draft, i)
        if found is None:
            i += 1
            continue
        _around_attention(draft, i, found, conv1d)
        i = found + 1


def _attention_at(draft: Draft, i: int) -> int | None:
    """Index of the product with the values, if the kernel at `i` is the product of queries and keys."""
    scores = draft.ops[i]
    if scores.kind != "batched_gemm":
        return None
    for j in range(i + 1, min(i + 8, len(draft.ops))):
        op = draft.ops[j]
        if op.kind == "batched_gemm":
            alike = op["batch"] == scores["batch"] and op["m"] == scores["m"] and op["k"] == scores["n"]
            softmax = any(draft.ops[at].is_reduction("softmax") for at in range(i + 1, j))
            return j if alike and softmax else None
        if not (op.is_elementwise() or op.is_reduction("softmax")):
            return None
    return None


def _around_attention(draft: Draft, i: int, j: int, conv1d: bool) -> None:
    scores, context = draft.ops[i], draft.ops[j]
    linears = [draft.ops[at] for at in range(max(0, i - 12), i) if draft.ops[at].kind == "gemm"][-3:]
    tokens = linears[-1]["m"] if linears else draft.shape.tokens
    batch = max(1, tokens // scores["m"])
    heads = max(1, scores["batch"] // batch)
    head_dim = scores["k"]
    kv_width = linears[-1]["n"] if len(linears) == 3 else heads * head_dim
    grouped = kv_width < heads * head_dim and kv_width % head_dim == 0
    queries, keys = scores["batch"] * scores["m"] * head_dim, scores["batch"] * scores["n"] * head_dim
    for at in range(i + 1, j):
        op = draft.ops[at]
        if _is_mask(draft, at):
            draft.change(at, op="mask", inputs=1)  # the mask is shared by all heads
        elif op.is_elementwise("other"):
            draft.change(at, op="div")
    _rotary(draft, i, heads)
    # A product of 4-d tensors flattens batch and heads, which copies transposed operands; with one
    # sequence they flatten without. Keys and values of grouped heads were made contiguous by expansion.
    flatten = "copies of queries, keys and values into batched products"
    if grouped:
        for _ in range(2):
            draft.copy("expansions of grouped keys and values", i, keys)
        if batch > 1:
            draft.copy(flatten, i, queries)
    elif batch > 1:
        draft.copy(flatten, i, queries)
        draft.copy(flatten, i, keys)
        draft.copy(flatten, j, keys)
    if conv1d:
        draft.add(
            "causal masks", i, "elementwise", after=True, op="mask", elements=scores.results, dtype=scores["dtype"]
        )
    if heads > 1:
        draft.copy("copies that put heads side by side after attention", j, context.results, after=True)


def _rotary(draft: Draft, i: int, heads: int) -> None:
    """Pairs x cos + rotated(x) sin: the trace keeps the products and the sum, not the negation and concatenation."""
    for at in range(max(0, i - 6), i - 2):
        cos, sin, total = draft.ops[at : at + 3]
        if not (cos.is_elementwise("mul") and sin.is_elementwise("mul") and total.is_elementwise("add")):
            continue
        if cos["elements"] == sin["elements"] == total["elements"]:
            what = "negations and concatenations of rotary embeddings"
            draft.add(
                what, at + 1, "elementwise", op="other", elements=max(1, cos["elements"] // 2), dtype=cos["dtype"]
            )
            draft.copy(what, at + 1, cos["elements"], dtype=cos["dtype"])
            if heads >= 4:  # tables shared by many heads hardly add to the traffic
                draft.change(at, inputs=1)
                draft.change(at + 1, inputs=1)


def _convolutions(draft: Draft) -> None:
    """Batch norms, biases, depthwise convolutions, concatenations and pooling of convolutional networks."""
    places = [i for i, op in enumerate(draft.ops) if op.kind == "conv2d"]
    for rank, i in enumerate(places):
        conv, follower = draft.ops[i], draft.at(i + 1)
        previous = draft.ops[places[rank - 1]] if rank else None
        following = draft.ops[places[rank + 1]] if rank + 1 < len(places) else None
        dtype, results = conv["dtype"], conv.results
        if previous and _is_depthwise(previous, conv, following):
            draft.change(i, groups=conv["in_channels"])
            draft.counts["!# convolutions traced as dense were taken as depthwise"] += 1
        if previous and conv["in_channels"] == 2 * previous["out_channels"] and conv["height"] == previous.side:
            elements = conv["batch_size"] * conv["in_channels"] * conv["height"] ** 2
            draft.copy("concatenations of feature maps", i, elements, dtype=dtype)
        if previous and conv["height"] * 2 == previous.side:
            rows = conv["batch_size"] * conv["in_channels"] * conv["height"] ** 2
            draft.add("poolings", i, "row_reduction", op="pool", rows=rows, dim=4, dtype=dtype)
        if conv["kernel_h"] == conv["stride"] > 1:
            draft.add("biases of convolutions", i, "elementwise", after=True, op="bias", elements=results, dtype=dtype)
            if follower and follower.is_elementwise() and follower["elements"] > results:
                draft.copy("concatenations of class tokens", i, follower["elements"], after=True, dtype=dtype)
        elif follower is None or not follower.is_reduction("layer_norm"):
            draft.add("batch norms", i, "elementwise", after=True, op="scale", elements=results,
                      flop_per_element=2, dtype=dtype)  # fmt: skip
    if places:
        _pooling_at_the_end(draft, places[-1])


def _is_depthwise(previous: TracedOp, conv: TracedOp, following: TracedOp | None) -> bool:
    """Whether a convolution is the middle of an inverted residual: expand, filter each channel, reduce."""
    channels = conv["out_channels"]
    return bool(
        following is not None
        and conv["kernel_h"] > 1 == conv["groups"]
        and conv["in_channels"] == channels == previous["out_channels"] == following["in_channels"]
        and previous["kernel_h"] == following["kernel_h"] == 1
        and previous["in_channels"] < channels > following["out_channels"]
    )


def _pooling_at_the_end(draft: Draft, last: int) -> None:
    conv, at = draft.ops[last], last + 1
    while at < len(draft.ops) and draft.ops[at].is_elementwise():
        at += 1
    classifier = draft.at(at)
    if classifier is None or (classifier.kind == "gemm" and classifier["m"] == conv["batch_size"]):
        draft.add("poolings", at - 1, "row_reduction", after=True, op="mean",
                  rows=conv["batch_size"] * conv["out_channels"], dim=conv.side**2, dtype=conv["dtype"])  # fmt: skip


def _patches(draft: Draft) -> None:
    """Feature maps cut into patches before a transformer inside a convolutional network, and put together after."""
    places = [i for i, op in enumerate(draft.ops) if op.kind == "conv2d"]
    what = "copies that cut feature maps into patches and back"
    for i, j in pairwise(places):
        products = [op for op in draft.ops[i:j] if op.kind == "batched_gemm"]
        if not products or not draft.ops[i + 1].is_reduction("layer_norm"):
            continue
        results = draft.ops[i].results
        if draft.ops[i + 1].results == results and products[0]["m"] != draft.ops[i].side ** 2:
            for _ in range(2):
                draft.copy(what, i + 1, results)
                draft.copy(what, j, results)
