"""Attention written as multiply, softmax, multiply: found among recorded operators and made one fused operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulecast.workloads.events import Event
from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_masks import Seen, seen_through
from joulecast.workloads.pytorch_shapes import attention_gradient

_SOFTMAX = frozenset({"_softmax", "_safe_softmax", "softmax"})
_PRODUCTS = frozenset({"bmm", "baddbmm"})

#: What stands between the products and the softmax: scales, masks, caps, casts, dropout, copies.
_POINTWISE = (
    "mul mul_ div div_ add add_ sub where masked_fill masked_fill_ _to_copy clone tanh native_dropout copy_ maximum"
    " clamp bernoulli_ constant_pad_nd slice_scatter _unsafe_view nan_to_num"
)
_BETWEEN = frozenset(_POINTWISE.split())

#: Copies that change nothing but where elements lie.
_LAYOUT = frozenset({"clone", "contiguous", "_reshape_copy"})


class Flow:
    """Which event wrote a value, and which read it."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        for place, event in enumerate(events):
            for value, _, _ in event.reads:
                self.readers.setdefault(value, []).append(place)
            for value, _, _ in event.writes:
                self.writer[value] = place


def fuse_attention(events: list[Event]) -> int:
    """Replace attention in pieces by fused attention, in place.

    A softmax whose argument comes from a batched product, through pointwise operators of its size alone, and whose
    result goes into another is attention: the first product's row then holds the fused operation, the rest are empty.
    Keys and values that were copied out to more heads count with the heads they had. The pieces of its gradient
    become that of fused attention likewise.

    Returns
    -------
    int
        Attentions found.
    """
    flow = Flow(events)
    found = 0
    for place, event in enumerate(events):
        if event.op in _SOFTMAX and len(event.shape) >= 3:
            found += _forward(flow, place)
        elif event.op == "_softmax_backward_data":
            _backward(flow, place)
    return found


def _forward(flow: Flow, place: int) -> int:
    events = flow.events
    softmax = events[place]
    before = _back_to_product(flow, place)
    after = _on_to_product(flow, place)
    if before is None or after is None:
        return 0
    first, second = events[before[-1]], events[after[-1]]
    if not first.rows or not second.rows:
        return 0
    one, two = first.rows[0][1], second.rows[0][1]
    if not (one["batch"] == two["batch"] and one["m"] == two["m"] and one["n"] == two["k"]):
        return 0
    heads = _heads(softmax.shape, one["batch"])
    if heads is None:
        return 0
    batch, count = heads
    copies = _copied_heads(flow, first, second)
    kv_heads = max(count // copies[0], 1) if count % copies[0] == 0 else count
    seen = next(
        (
            found
            for index in before
            if (mask := events[index].mask) is not None and (found := seen_through(mask, one["m"], one["n"]))
        ),
        None,
    )
    first.rows = [_fused(batch, count, kv_heads, one, two["n"], seen)]
    first.op = "fused_attention"
    largest = [
        reader
        for index in before
        for value, _, _ in events[index].writes
        for reader in flow.readers.get(value, [])
        if events[reader].op in ("amax", "max")
    ]
    laid_out = _laid_out(flow, before[-1], after[-1])
    for index in (*before[:-1], place, *after, *copies[1], *largest, *laid_out):
        events[index].rows = []
    return 1


def _laid_out(flow: Flow, first: int, second: int) -> list[int]:
    """Copies that bring queries, keys and values, and what is made of them, into the order that products need.

    A fused kernel reads heads where they lie and writes those of a token side by side.
    """
    out = []
    for product in (first, second):
        for value, elements, _ in flow.events[product].reads[-2:]:
            place = flow.writer.get(value)
            if place is not None and flow.events[place].op in _LAYOUT and flow.readers.get(value) == [product]:
                event = flow.events[place]
                if event.reads and event.reads[0][1] == elements:
                    out.append(place)
    for value, elements, _ in flow.events[second].writes:
        for place in flow.readers.get(value, []) if len(flow.readers.get(value, [])) == 1 else []:
            event = flow.events[place]
            if event.op in _LAYOUT and event.writes[0][1] == elements:
                out.append(place)
    return out


def _fused(batch: int, heads: int, kv_heads: int, one: dict[str, Any], value: int, seen: Seen | None) -> Row:
    queries, keys, width = one["m"], one["n"], one["k"]
    shape = {"batch_size": batch, "num_heads": heads, "num_kv_heads": kv_heads, "attn_dtype": one["dtype"]}
    causal = seen is not None and seen.causal
    if causal or (queries == 1 and keys > 1 and (seen is None or seen.keys in (0, keys))):
        window = seen.window if seen is not None else 0
        past = keys - queries
        kind = "generation_attention" if queries == 1 and past else "context_attention"
        return (kind, {**shape, "query_len": queries, "past_len": past, "head_dim": width, "value_dim": value,
                       "window_size": window if window < keys else 0})  # fmt: skip
    shown = seen.keys if seen is not None and seen.keys else keys
    return ("encoder_attention", {**shape, "seq_len": queries, "kv_len": shown,
                                  "head_dim": max((width + value) // 2, 1)})  # fmt: skip


def _heads(shape: tuple[int, ...], products: int) -> tuple[int, int] | None:
    """Sequences and heads of scores: from four or five dimensions, or three of them (all in one)."""
    if len(shape) == 4 and shape[0] * shape[1] == products:
        return shape[0], shape[1]
    if len(shape) == 5 and shape[0] * shape[1] * shape[2] == products:
        return shape[0], shape[1] * shape[2]
    if len(shape) == 3 and shape[0] == products:
        return 1, shape[0]
    return None


def _back_to_product(flow: Flow, place: int) -> list[int] | None:
    """Events from the softmax's argument back to the product that made it."""
    path: list[int] = []
    here = flow.events[place]
    size = here.writes[0][1] if here.writes else 0
    for _ in range(16):
        value = next((read[0] for read in here.reads if read[1] == size), None)
        place_before = flow.writer.get(value) if value is not None else None
        if place_before is None or place_before in path:
            return None
        path.append(place_before)
        here = flow.events[place_before]
        if here.op == "cat" and here.reads:  # a sink beside the scores
            size = max(read[1] for read in here.reads)
        if here.op in _PRODUCTS:
            return path
        if here.op not in _BETWEEN and here.op != "cat":
            return None
    return None


def _on_to_product(flow: Flow, place: int) -> list[int] | None:
    """Events from the softmax's result on to the product that reads it; it is looked for among all readers."""
    path: list[int] = []
    here = flow.events[place]
    for _ in range(8):
        size = here.writes[0][1] if here.writes else 0
        nexts = [
            reader
            for value, elements, _ in here.writes
            if elements == size
            for reader in flow.readers.get(value, [])
            if flow.events[reader].phase == here.phase and reader not in path
        ]
        products = [one for one in nexts if flow.events[one].op in _PRODUCTS]
        if products:
            return [*path, products[0]]
        between = [one for one in nexts if flow.events[one].op in _BETWEEN]
        if not between:
            return None
        path.append(between[0])
        here = flow.events[between[0]]
    return None


def _copied_heads(flow: Flow, first: Event, second: Event) -> tuple[int, list[int]]:
    """How often keys and values were copied out to more heads, and the copies."""
    ratios, copies = [], []
    for product, side in ((first, 1), (second, 1)):
        if len(product.reads) <= side:
            continue
        place = flow.writer.get(product.reads[-1][0])
        event = flow.events[place] if place is not None else None
        if event is None or event.op not in ("clone", "repeat", "_unsafe_view") or not event.reads or place is None:
            continue
        source = flow.writer.get(event.reads[0][0])
        made = flow.events[source].writes[0][1] if source is not None and flow.events[source].writes else 0
        if made and event.writes[0][1] > made and event.writes[0][1] % made == 0:
            ratios.append(event.writes[0][1] // made)
            copies.append(place)
    return (min(ratios) if len(ratios) == 2 and ratios[0] == ratios[1] else 1), (
        copies if len(ratios) == 2 and ratios[0] == ratios[1] else []
    )


def _backward(flow: Flow, place: int) -> None:
    """The gradient's pieces: two products before the softmax's gradient, two after it."""
    events = flow.events
    here = events[place]
    before = _back_to_product(flow, place)
    saved = here.reads[1][0] if len(here.reads) > 1 else None
    made_by = flow.writer.get(saved) if saved is not None else None
    if before is None or made_by is None:
        return
    forward = _product_of(flow, made_by)
    if forward is None:
        return
    after = [
        reader
        for step in _onward(flow, place)
        for value, _, _ in events[step].writes
        for reader in flow.readers.get(value, [])
        if events[reader].op in _PRODUCTS and events[reader].phase == "backward"
    ]
    values = [
        reader
        for step in _onward(flow, made_by)
        for value, _, _ in events[step].writes
        for reader in flow.readers.get(value, [])
        if events[reader].op in _PRODUCTS and events[reader].phase == "backward"
    ]
    first = events[before[-1]]
    first.rows = attention_gradient(forward.rows)
    for index in {*before[:-1], place, *_onward(flow, place), *after, *values} - {before[-1]}:
        if events[index].phase == "backward":
            events[index].rows = []


def _onward(flow: Flow, place: int) -> list[int]:
    """`place` and the pointwise events that carry its result on."""
    out, queue = [place], [place]
    while queue and len(out) < 16:
        here = flow.events[queue.pop()]
        size = here.writes[0][1] if here.writes else 0
        for value, elements, _ in here.writes:
            for reader in flow.readers.get(value, []) if elements == size else []:
                if flow.events[reader].op in _BETWEEN and reader not in out:
                    out.append(reader)
                    queue.append(reader)
    return out


def _product_of(flow: Flow, softmax: int) -> Event | None:
    """The fused operation that the forward's softmax became part of."""
    before = [softmax]
    here = flow.events[softmax]
    size = here.writes[0][1] if here.writes else 0
    for _ in range(16):
        value = next((read[0] for read in here.reads if read[1] == size), None)
        place = flow.writer.get(value) if value is not None else None
        if place is None or place in before:
            return None
        here = flow.events[place]
        if here.op == "fused_attention":
            return here
        before.append(place)
    return None
