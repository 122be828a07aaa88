"""Whole latent attention modules: projections and norms around an attention kernel, with or without the indexer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels import flash, mla
from joulecast.kernels.flash import Floats, by_code, column
from joulecast.kernels.work import Conditions, Family, KernelWork, tail_fill
from joulecast.lowering.formats import arithmetic
from joulecast.workloads.table import OpTable

#: Shares of peak that products of this size reach, to tell whether weights or arithmetic set their time.
_TENSOR_SHARE, _DRAM_SHARE = 0.6, 0.8

#: Kernels that surround the products: norms, rotation, cache write, and for narrow formats one conversion a product.
_SMALL_KERNELS = 4.0


@dataclass(frozen=True)
class Around:
    """Kernels that run before and after an attention kernel, row by row.

    Attributes
    ----------
    flop, cycles : ndarray
        Arithmetic of tensor cores, and the core cycles that it takes at peak with the blocks it has. [FLOP, cycles]
    useful_flop : ndarray
    weight_bytes, activation_bytes : ndarray
        [B]
    alone_bytes : ndarray
        Part of the weights that sets the time of its product. [B]
    launches : ndarray
    """

    flop: Floats
    cycles: Floats
    useful_flop: Floats
    weight_bytes: Floats
    activation_bytes: Floats
    alone_bytes: Floats
    launches: Floats


@dataclass(frozen=True)
class Product:
    """A product of activations and weights: rows, columns and depth, and how many of them run side by side."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    narrow: bool = True  # in the format of the projections; else in bf16


def around(products: list[Product], gpu: Gpu, gemm_codes: Floats) -> Around:
    """Work of a list of products, tile by tile; they run one after another."""
    codes = np.asarray(gemm_codes, dtype=np.intp)
    wide = np.full_like(codes, flash.BF16)
    n = len(codes)
    flop, cycles, useful, weights, activations, alone = (np.zeros(n) for _ in range(6))
    launches = np.full(n, _SMALL_KERNELS)
    for one in products:
        formats = codes if one.narrow else wide
        rate, _, _ = flash.rates(gpu, formats)
        rows = np.where(one.m <= 64, 64.0, 128.0)
        blocks = one.batch * np.ceil(one.m / rows) * np.ceil(one.n / 128)
        _, fill = tail_fill(blocks, gpu.sm_count)
        work = 2 * blocks * rows * 128 * one.k
        # few blocks share their depth with others
        took = work / (rate * np.where(fill < 0.5, np.minimum(1.0, fill * np.ceil(one.k / 1024)), fill))
        weight = one.batch * one.n * one.k * by_code(formats, lambda d: d.weight_bytes)
        dram_cycles = weight / (gpu.dram_gb_s * 1e3 * _DRAM_SHARE) * gpu.rate_clock_mhz
        ratio = (took / _TENSOR_SHARE / dram_cycles) ** 3
        flop += work
        cycles += took
        useful += 2 * one.batch * one.m * one.n * one.k
        weights += weight
        alone += weight / (1 + ratio)
        activations += one.batch * one.m * (one.k * by_code(formats, lambda d: d.activation_bytes) + 2.0 * one.n)
        converts = by_code(formats, lambda d: d.activation_bytes) < 2
        activations += np.where(converts, 2.0 * one.batch * one.m * one.k, 0.0)
        launches += 1.0 + converts
    return Around(flop, cycles, useful, weights, activations, alone, launches)


def surround(core: KernelWork, extra: Around, gpu: Gpu, conditions: Conditions, family: str) -> KernelWork:
    """An attention kernel together with the kernels around it, none of which overlaps with another.

    Rates and fill become those that give the sum of the parts' times.
    """
    on_cuda = core.tensor_flop <= 0  # no tensor cores for the attention, then none for its projections
    flop = np.where(on_cuda, 0.0, core.tensor_flop + extra.flop)
    core_cycles = core.tensor_flop / core.tensor_flop_per_clk
    at_peak = core_cycles / core.fill + extra.cycles
    l2 = gpu.l2_mib * 2**20
    cold = np.ones_like(flop)
    if conditions.residency == "loop":
        # a module's weights, cache and activations come round together
        cold = 1 - flash.cyclic_hits(extra.weight_bytes + extra.activation_bytes + core.dram_bytes, l2)
    weights, alone = extra.weight_bytes * cold, extra.alone_bytes * cold
    activations = extra.activation_bytes * cold
    whole = np.where(on_cuda, core.fill, flop / core.tensor_flop_per_clk / np.maximum(at_peak, 1.0))
    names = {
        "log_tokens": np.log(extra.activation_bytes + 1.0),
        "around_share": extra.cycles / np.maximum(at_peak, 1.0),
        "log_weights_over_l2": np.log(extra.weight_bytes / l2),
        "log_alone_over_weights": extra.alone_bytes / extra.weight_bytes,
        "core_fill": core.fill,
    }
    return replace(
        core,
        family=family,
        tensor_flop=flop,
        cuda_flop=core.cuda_flop + np.where(on_cuda, extra.flop, 0.0),
        fill=np.clip(whole, 1e-4, 1.0),
        l2_bytes=core.l2_bytes + extra.weight_bytes + extra.activation_bytes,
        serial_l2_bytes=core.serial_l2_bytes + extra.alone_bytes + extra.activation_bytes / 2,
        dram_bytes=core.dram_bytes + weights + activations,
        serial_dram_bytes=core.serial_dram_bytes + alone + activations / 2,
        launches=core.launches + extra.launches,
        useful_flop=core.useful_flop + extra.useful_flop,
        features=np.concatenate([core.features, np.stack(list(names.values()), axis=1)], axis=1),
        feature_names=(*core.feature_names, *names),
    )


def _projections(table: OpTable, widths: dict[str, Floats], absorbed: bool) -> list[Product]:
    """Products of a module: down and up for queries, down (and up) for keys and values, out."""
    tokens, heads = column(table, "batch_size") * column(table, "query_len"), column(table, "num_heads")
    one = np.ones_like(tokens)
    down = widths["q_rank"] + widths["kv_rank"] + widths["rope"]
    products = [
        Product(tokens, down, widths["hidden"], one),
        Product(tokens, heads * (widths["nope"] + widths["rope"]), widths["q_rank"], one),
        Product(tokens, widths["hidden"], heads * widths["value"], one),
    ]
    if absorbed:
        products += [
            Product(tokens, widths["kv_rank"], widths["nope"], heads, narrow=False),
            Product(tokens, widths["value"], widths["kv_rank"], heads, narrow=False),
        ]
    else:
        products.append(Product(tokens, heads * (widths["nope"] + widths["value"]), widths["kv_rank"], one))
    return products


def _indexer(table: OpTable, widths: dict[str, Floats]) -> list[Product]:
    """Products that give the indexer its queries, keys and weights."""
    tokens = column(table, "batch_size") * column(table, "query_len")
    one = np.ones_like(tokens)
    return [
        Product(tokens, widths["index_heads"] * widths["index_dim"], widths["q_rank"], one),
        Product(tokens, widths["index_dim"] + widths["index_heads"], widths["hidden"], one),
    ]


def _scored(extra: Around, table: OpTable, widths: dict[str, Floats], gpu: Gpu) -> Around:
    """Add the indexer's scores of all visible keys, in fp8 where there is such, and the choice of the best."""
    batch, queries, past = (column(table, name) for name in ("batch_size", "query_len", "past_len"))
    pairs = batch * flash.visible_pairs(queries, past, np.zeros_like(queries))
    flop = 2 * pairs * widths["index_heads"] * widths["index_dim"]
    rate = gpu.tensor_flop_per_clk("fp8") or gpu.tensor_flop_per_clk("bf16") or gpu.cuda_flop_per_clk("fp32")
    keys = batch * (past + queries) * (widths["index_dim"] + 4)
    scores = 4.0 * pairs * 3  # written once, read twice to find the best
    return replace(
        extra,
        flop=extra.flop + flop,
        cycles=extra.cycles + flop / rate,
        useful_flop=extra.useful_flop + flop,
        activation_bytes=extra.activation_bytes + keys + scores,
        launches=extra.launches + 4,
    )


def _lacking(gpu: Gpu, gemm_codes: npt.NDArray[np.intp]) -> dict[int, str]:
    """Rows whose projections the GPU has no arithmetic for, with why."""
    reasons: dict[int, str] = {}
    for code in np.unique(gemm_codes):
        math = arithmetic(gpu, DTYPES[code].name)
        if gpu.tensor_flop_per_clk(math) <= 0 and gpu.cuda_flop_per_clk(math) <= 0:
            reason = f"{gpu.name} has no {math} arithmetic for projections in {DTYPES[code].name}"
            reasons.update(dict.fromkeys(np.flatnonzero(gemm_codes == code).tolist(), reason))
    return reasons


def _module(name: str, *, decode: bool, sparse: bool) -> Callable[[OpTable, Gpu, Conditions], KernelWork]:
    def module_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
        found, reasons = mla.formats(table, gpu, conditions)
        reasons |= _lacking(gpu, table["gemm_dtype"])
        widths = mla.widths_of(table)
        queries, past = column(table, "query_len"), column(table, "past_len")
        if decode or sparse:
            keys = past + queries
            if sparse:  # the mean over the queries
                keys = flash.visible_pairs(queries, past, widths["index_keys"]) / queries
            core = mla.latent_decode(
                gpu, conditions, found, family=name, reasons=reasons, batch=column(table, "batch_size"),
                queries=queries, keys=keys, heads=column(table, "num_heads"), widths=widths, scattered=sparse,
            )  # fmt: skip
        else:
            core = mla.unfolded_prefill(table, gpu, conditions, found, name, reasons)
        products = _projections(table, widths, absorbed=decode or sparse)
        if sparse:
            products += _indexer(table, widths)
        extra = around(products, gpu, table["gemm_dtype"])
        if sparse:
            extra = _scored(extra, table, widths, gpu)
        return surround(core, extra, gpu, conditions, name)

    return module_work


FAMILY = tuple(
    Family(name, (name,), _module(name, decode=name.endswith("generation"), sparse=name.startswith("dsa")))
    for name in ("mla_module_context", "mla_module_generation", "dsa_module_context", "dsa_module_generation")
)
