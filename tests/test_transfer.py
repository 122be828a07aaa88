"""What GPUs that nobody measured take from their relatives."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.bounds.energies import energy_bounds_pj
from joulecast.calibration.common_power import CommonRows, fit_common
from joulecast.calibration.correction_fit import CorrectionBatch, fit_correction
from joulecast.calibration.kernels import pools, predicted_s
from joulecast.calibration.time_fit import fit_time
from joulecast.coefficients import energies, likeness, store, transfer
from joulecast.coefficients.likeness import correction_share, influence, unlikeness
from joulecast.coefficients.schema import TIME_PARAMETERS, GpuCoefficients, TimeCoefficients
from joulecast.coefficients.voltage import rate_energy
from joulecast.gpus import gpu_names, load_gpu
from joulecast.gpus.changes import change_gpu
from joulecast.kernels.work import Conditions, work
from joulecast.physics.correction import correction_factor, output_head
from joulecast.physics.price import price
from joulecast.physics.settled import at_clock
from joulecast.physics.timing import duration_s, module_times, parameters_by_row
from joulecast.workloads.table import op_table

A100, H100, H200, B200, L40S, V100 = map(
    load_gpu, ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S", "V100-SXM-32GB")
)
BF16 = ("trtllm", "bf16")


@pytest.fixture
def calibrated(monkeypatch):
    """Pretends that only the given GPUs were calibrated, each with one efficiency of DRAM for a family."""

    def pretend(family="gemm", group="bf16", **fitted):
        files = {
            name: GpuCoefficients(
                name, {f"{family}/trtllm/{group}": replace(one, provenance="fitted", error=0.05, spread90=0.1, rows=9)}
            )
            for name, one in fitted.items()
        }
        monkeypatch.setattr(store, "known", lambda: tuple(files))
        monkeypatch.setattr(store, "load", lambda name: files.get(name))
        for cached in (transfer.relatives, transfer.time_coefficients):
            cached.cache_clear()

    yield pretend
    monkeypatch.undo()
    for cached in (transfer.relatives, transfer.time_coefficients):
        cached.cache_clear()


# Likeness


@given(st.sampled_from(gpu_names()), st.sampled_from(gpu_names()))
def test_unlikeness_is_mutual_and_none_only_to_itself(first, second):
    a, b = load_gpu(first), load_gpu(second)
    there, back = unlikeness("gemm", a, BF16, b, BF16), unlikeness("gemm", b, BF16, a, BF16)
    assert there == pytest.approx(back)
    assert (there == 0) == (first == second)


def test_collectives_over_nvlink_say_nothing_of_the_hosts_bus():
    # by generation Ada is nearer to Ampere than Hopper is, but an L40S has no NVLink
    assert unlikeness("gemm", A100, BF16, L40S, BF16) < unlikeness("gemm", A100, BF16, H100, BF16)
    all_reduce = ("nccl", "all_reduce/8")
    near, far = (unlikeness("nccl", A100, all_reduce, one, all_reduce) for one in (H100, L40S))
    assert near < far


def test_fp8_is_not_taken_for_an_integer_format():
    assert likeness.group_distance("fp16", "bf16") < likeness.group_distance("fp8", "w8a8")
    # kernels of the same format one generation on come before those of another format on a nearer GPU
    assert unlikeness("gemm", L40S, ("trtllm", "fp8"), H100, ("trtllm", "fp8")) < unlikeness(
        "gemm", L40S, ("trtllm", "fp8"), A100, ("trtllm", "w8a8")
    )


@given(st.floats(0, 10), st.floats(0, 10))
def test_what_is_more_unlike_counts_less(one, other):
    near, far = sorted((one, other))
    assert influence(near) >= influence(far) > 0
    assert 1 >= correction_share(near) >= correction_share(far) > 0
    assert correction_share(0) == 1


# Efficiencies

efficiencies = st.builds(
    TimeCoefficients,
    tensor_efficiency=st.floats(0.2, 1),
    l2_efficiency=st.floats(0.2, 1),
    dram_efficiency=st.floats(0.4, 1),
    fixed_us=st.floats(0.5, 20),
    sharpness=st.floats(1, 12),
)


@given(st.lists(st.tuples(st.floats(1e-3, 3), efficiencies), min_size=1, max_size=6))
def test_a_blend_lies_between_what_it_is_made_of(choices):
    choices.sort(key=lambda choice: choice[0])
    blend = transfer.blended(choices)
    for name in TIME_PARAMETERS:
        values = [getattr(one, name) for _, one in choices]
        assert min(values) * (1 - 1e-9) <= getattr(blend, name) <= max(values) * (1 + 1e-9)


def test_a_gpu_between_two_generations_gets_numbers_between_and_nearer_the_nearer(calibrated):
    low, high = TimeCoefficients(dram_efficiency=0.6), TimeCoefficients(dram_efficiency=0.9)
    calibrated(**{"V100-SXM-32GB": low, "H100-SXM-80GB": high})
    found = transfer.time_coefficients(A100, "gemm", "trtllm", "bf16")
    assert 0.6 < found.dram_efficiency < 0.9
    assert found.provenance == "transferred"
    # Volta and Hopper stand as far from Ampere; a twin outweighs both
    assert found.dram_efficiency == pytest.approx(np.sqrt(0.6 * 0.9), abs=0.02)
    calibrated(**{"V100-SXM-32GB": low, "A100-SXM-40GB": high})
    assert transfer.time_coefficients(A100, "gemm", "trtllm", "bf16").dram_efficiency == pytest.approx(0.9, abs=1e-3)


def test_an_own_fit_is_never_blended(calibrated):
    own = TimeCoefficients(dram_efficiency=0.7)
    calibrated(**{"A100-SXM-80GB": own, "A100-SXM-40GB": TimeCoefficients(dram_efficiency=0.9)})
    found = transfer.time_coefficients(A100, "gemm", "trtllm", "bf16")
    assert (found.dram_efficiency, found.provenance) == (0.7, "fitted")
    # what-if changes keep it
    faster = replace(A100, name=f"{A100.name}+dram", dram_gb_s=2.0 * A100.dram_gb_s)
    assert transfer.time_coefficients(faster, "gemm", "trtllm", "bf16").dram_efficiency == 0.7


def test_an_unmeasured_gpu_with_nvlink_reduces_like_those_with_nvlink(calibrated):
    bus, nvlink = TimeCoefficients(link_efficiency=0.05), TimeCoefficients(link_efficiency=0.7)
    calibrated("nccl", "all_reduce/8", **{"L40S": bus, "H100-SXM-80GB": nvlink, "B200-SXM-180GB": nvlink})
    assert transfer.time_coefficients(A100, "nccl", "nccl", "all_reduce/8").link_efficiency > 0.55
    assert transfer.time_coefficients(load_gpu("L4"), "nccl", "nccl", "all_reduce/8").link_efficiency < 0.1


# Corrections


def synthetic(n, seed, gpu):
    """Products with a feature on which the time depends in a way that efficiencies don't cover."""
    generator = np.random.default_rng(seed)
    flop = 10 ** generator.uniform(9, 12, n)
    feature = generator.uniform(-2, 2, n)
    described = work(
        "gemm", n, groups=("bf16",), group=np.zeros(n, dtype=np.intp), tensor_flop=flop,
        tensor_flop_per_clk=gpu.tensor_flop_per_clk("bf16"), dram_bytes=flop / 100, l2_bytes=flop / 50,
        fill=generator.uniform(0.5, 1, n), blocks=1e4, waves=4.0, launches=1.0, useful_flop=flop,
        features={"depends": feature},
    )  # fmt: skip
    return described, feature


FITTED = TimeCoefficients(provenance="fitted")


def plain(described, gpu):
    times = module_times(described, gpu, parameters_by_row([FITTED], described.group))
    return times, duration_s(times, gpu, gpu.clock_max_mhz)


def batch(gpu, slope, seed):
    described, feature = synthetic(2500, seed, gpu)
    seconds = plain(described, gpu)[1] * np.exp(slope * feature)
    return CorrectionBatch(described, gpu, "trtllm", [FITTED], seconds, gpu.clock_max_mhz)


@pytest.fixture(scope="module")
def learned():
    """On Hopper times rise with a feature, on Ampere they don't."""
    return fit_correction([batch(H100, 0.2, 1), batch(A100, 0.0, 2)], hidden=(32, 24), epochs=20)


def slope_on(model, gpu, **options):
    described, feature = synthetic(800, 9, gpu)
    times, _ = plain(described, gpu)
    factor, _ = correction_factor(model, described, times, gpu, engine="trtllm", **options)
    return np.polyfit(feature, np.log(factor), 1)[0]


def test_an_unmeasured_twin_takes_the_outputs_of_its_chip(learned):
    assert slope_on(learned, H100) == pytest.approx(0.2, abs=0.03)
    # faster memory moves rows out of the range of the data, where any correction fades
    assert 0.12 < slope_on(learned, H200) < 0.22
    assert slope_on(learned, load_gpu("A100-SXM-40GB")) == pytest.approx(0.0, abs=0.03)


def test_a_correction_wanes_with_unlikeness(learned):
    """The next generation takes part of its relative's correction, and one far away hardly any."""
    _, whole = output_head(learned, "bf16", H100, "trtllm")
    shares = [output_head(learned, "bf16", one, "trtllm")[1] for one in (H200, B200, load_gpu("MI300X"))]
    assert whole == 1
    assert list(shares) == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1, abs=0.01)
    assert shares[2] < 0.02
    assert 0.03 < slope_on(learned, B200) < 0.17
    # so does another format or engine of the same GPU
    _, other = output_head(learned, "fp8", H100, "trtllm")
    _, engine = output_head(learned, "bf16", H100, "vllm")
    assert 0 < other < engine < 1


def test_a_gpu_that_is_left_out_lends_nothing(learned):
    alone = replace(learned, own=MappingProxyType({k: v for k, v in learned.own.items() if k.startswith("A100")}))
    assert slope_on(learned, H200, exclude=(H100.name,)) == pytest.approx(slope_on(alone, H200), abs=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(gpu_names()))
def test_any_gpu_of_the_catalogue_has_an_output(name):
    model = _tiny()
    head, share = output_head(model, "bf16", load_gpu(name), "trtllm")
    assert np.isfinite(head).all()
    assert 0 < share <= 1


def _tiny():
    model = fit_correction_once()
    return replace(model, own={**model.own, "no-such-gpu/trtllm/bf16": model.head * np.float32("nan")})


_KEPT = {}


def fit_correction_once():
    if not _KEPT:
        _KEPT["model"] = fit_correction([batch(H100, 0.1, 3)], hidden=(8, 8), epochs=1)
    return _KEPT["model"]


# Measured GPUs, left out


@pytest.fixture(scope="module")
def gemms(data_dir):
    """A few products of each GPU, with efficiencies fitted on them."""
    found = []
    for pool in pools(data_dir, ("gemm",), 1200):
        if pool.key == "gemm/trtllm":
            few = pool.take(np.flatnonzero(~pool.capped)[:4000])
            fits = fit_time(few.work, few.gpu, few.time_s, few.gpu.clock_max_mhz, source="test", most_rows=600)
            found.append((few, fits))
    return found


@pytest.mark.parametrize(("chip", "most"), [("A100", 0.16), ("H100", 0.11), ("L40S", 0.19), ("B200", 0.22)])
def test_products_on_a_gpu_left_out_are_predicted_as_well_as_relatives_allow(gemms, chip, most):
    kept = [(pool, fits) for pool, fits in gemms if not pool.gpu.name.startswith(chip)]
    (left, _) = next(one for one in gemms if one[0].gpu.name.startswith(chip))
    rows = left.work.group == left.work.groups.index("bf16")

    def error(one):
        return float(np.abs(predicted_s(left, {"bf16": one})[rows] / left.time_s[rows] - 1).mean())

    choices = [
        (unlikeness("gemm", left.gpu, BF16, pool.gpu, ("trtllm", group)), one)
        for pool, fits in kept
        for group, one in fits.items()
    ]
    choices.sort(key=lambda choice: choice[0])
    blend = error(transfer.blended(choices))
    assert blend < most
    # no worse than the nearest relative by more than chance, nor than relatives are on average
    assert blend < 1.2 * error(choices[0][1])
    assert blend <= np.mean([error(fits["bf16"]) for _, fits in kept])


@pytest.fixture
def powered(monkeypatch):
    """Pretends that only the given GPUs have fitted energies."""

    def pretend(**energies):
        files = {name.replace("_", "-"): one for name, one in energies.items()}
        monkeypatch.setattr(store, "known", lambda: tuple(files))
        monkeypatch.setattr(store, "load", lambda name: GpuCoefficients(name, {}, power=files[name]))
        for cached in (transfer.relatives, transfer.power_coefficients):
            cached.cache_clear()

    yield pretend
    monkeypatch.undo()
    for cached in (transfer.relatives, transfer.power_coefficients):
        cached.cache_clear()


def _energies(gpu, factor=1.0, rows=10_000):
    start = energies.default_power(gpu)
    tensor = {name: pj * factor for name, pj in start.tensor_pj.items() if name in gpu.tensor_tflops}
    return replace(start, tensor_pj=tensor, provenance="fitted", rows=rows, learned_share=1.0)


def test_sms_of_one_more_of_the_same_chip_take_as_much_each(powered):
    powered(B200_SXM_180GB=replace(_energies(B200), active_w=296.0))
    more = load_gpu("GB200-186GB")
    found = transfer.power_coefficients(more)
    higher = rate_energy(
        more, B200, energies.default_power(B200)
    )  # 2010 of 2062 MHz take more voltage than 1855 of 1965
    assert 1.0 < higher < 1.1
    assert found.active_w == pytest.approx(296.0 * higher * (152 * 2010) / (148 * 1855))
    assert found.tensor_pj["bf16"] == pytest.approx(energies.default_power(B200).tensor_pj["bf16"] * higher)


def test_a_what_if_of_sms_and_clock_takes_power_as_a_gpu_that_has_them(powered):
    powered(B200_SXM_180GB=replace(_energies(B200), active_w=296.0))
    more = load_gpu("B200-SXM-180GB", {"sm_count": 160})
    assert transfer.power_coefficients(more).active_w == pytest.approx(320.0)
    assert transfer.power_coefficients(B200).active_w == 296.0


def test_a_few_passes_say_less_of_energies_than_many_kernels(powered):
    powered(H200_SXM_141GB=_energies(H200, 0.9), A10=_energies(load_gpu("A10"), 2.0, rows=5))
    few = transfer.power_coefficients(L40S).tensor_pj["bf16"]
    powered(H200_SXM_141GB=_energies(H200, 0.9), A10=_energies(load_gpu("A10"), 2.0, rows=5000))
    many = transfer.power_coefficients(L40S).tensor_pj["bf16"]
    plain = energies.default_power(L40S).tensor_pj["bf16"]
    assert 0.9 * plain < few < many < 2.0 * plain


def test_whole_passes_of_another_chip_give_what_all_gpus_have_in_common(powered):
    passes = replace(_energies(load_gpu("A10"), 2.0, rows=60), learned_share=0.0, limit_share=0.99)
    powered(A10=passes)
    found = transfer.power_coefficients(L40S)
    # 1.21 W an SM and GHz at 7 nm, 142 SMs at 2.52 GHz, their highest clock; 5 nm: root of the node
    assert found.active_w == pytest.approx(1.21 * 142 * 2.52 * (5 / 7) ** 0.5, rel=0.01)
    assert found.tensor_pj["fp16"] == pytest.approx(0.264 * 5 / 7)
    assert found.dram_pj == pytest.approx(2 * 85.7)  # GDDR6 takes twice what HBM2e does
    assert (found.provenance, found.source) == ("transferred", transfer.COMMON_SOURCE)
    assert transfer.power_coefficients(load_gpu("A40")).source == "rescaled from A10"  # its own die


def test_what_gpus_have_in_common_is_found_again_where_each_tells_a_part():
    truth = {**energies.COMMON, "dram": 100.0, "tensor": 0.3}
    generator = np.random.default_rng(0)
    parts = []
    for told in (("dram", "active"), ("tensor", "shared", "active"), ("cuda", "sfu", "l2", "dram")):
        terms = np.array([[40 / truth[name] * (name in told) for name in truth]]) * generator.uniform(0.2, 2, (60, 1))
        terms = terms * generator.uniform(0.2, 2.0, (60, len(truth)))
        parts.append(CommonRows(terms, np.full(60, 50.0), 50.0 + terms @ np.array(list(truth.values()))))
    found = fit_common(parts)
    assert found == {name: pytest.approx(value, rel=0.05) for name, value in truth.items()}


@pytest.mark.parametrize("name", gpu_names())
def test_no_energy_leaves_what_is_possible(name):
    gpu = load_gpu(name)
    power = transfer.power_coefficients(gpu)
    if power.provenance == "transferred":
        low, high = energy_bounds_pj("dram", gpu.process_nm, gpu.dram_type)
        assert low <= power.dram_pj * (1 + 1e-9)
        assert power.dram_pj <= high * (1 + 1e-9)
        for math, pj in power.tensor_pj.items():
            low, high = energy_bounds_pj(f"tensor.{math}", gpu.process_nm, gpu.dram_type)
            assert low * (1 - 1e-9) <= pj <= high * (1 + 1e-9)


def test_a_graphics_card_of_blackwells_time_is_like_ada_not_like_b200():
    card, server = load_gpu("RTX-PRO-6000-BLACKWELL"), B200
    assert likeness.distance(card, L40S) < likeness.distance(card, server)
    assert likeness.distance(load_gpu("B300-SXM-288GB"), server) < transfer.SIBLING
    assert likeness.distance(load_gpu("GB200-186GB"), server) < transfer.SIBLING


def test_a_sibling_takes_what_its_chip_was_measured_with():
    assert transfer.measured_on_chip(load_gpu("GB200-186GB")) >= transfer.measured_on_chip(B200)
    assert not transfer.measured_on_chip(load_gpu("MI300X"))


def test_launches_of_products_go_with_the_clock_and_those_of_decoding_do_not(calibrated):
    one = TimeCoefficients(fixed_us=4.0)
    calibrated(**{"A100-SXM-80GB": one})
    found = transfer.time_coefficients(L40S, "gemm", *BF16).fixed_us
    assert found == pytest.approx(4.0 * A100.clock_max_mhz / L40S.clock_max_mhz)
    calibrated(family="generation_attention", **{"A100-SXM-80GB": one})
    assert transfer.time_coefficients(L40S, "generation_attention", *BF16).fixed_us == 4.0


def test_arithmetic_that_no_relative_has_takes_energy_too(powered):
    powered(H200_SXM_141GB=_energies(H200, 0.5))
    found, plain = transfer.power_coefficients(B200).tensor_pj, energies.default_power(B200).tensor_pj
    assert "fp4" not in _energies(H200).tensor_pj
    assert found["fp4"] == pytest.approx(plain["fp4"] * found["bf16"] / plain["bf16"], rel=0.01)


def test_energies_go_with_the_voltage_that_rates_are_stated_at(powered):
    card = load_gpu("RTX-4000-ADA")  # rates at 2175 of 3105 MHz: at the knee of the curve, where the voltage is lowest
    powered(L40S=_energies(L40S))  # rates at its highest clock, on the same process
    found, plain = transfer.power_coefficients(card), energies.default_power(L40S)
    assert found.tensor_pj["bf16"] == pytest.approx(plain.tensor_pj["bf16"] * 0.75**2, rel=1e-3)
    assert found.dram_pj == pytest.approx(plain.dram_pj)


def test_what_starts_a_plugin_is_not_lent_to_other_kernels(calibrated):
    direct, plugin = TimeCoefficients(fixed_kcycles=4.0), TimeCoefficients(fixed_kcycles=15.0)
    files = {"gemm/trtllm/bf16": direct, "gemm/trtllm/w8a8": plugin, "gemm/trtllm/w4a16": plugin}
    calibrated(**{"A100-SXM-80GB": direct})
    known = replace(store.load("A100-SXM-80GB"), time={key: replace(one, rows=9) for key, one in files.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "load", lambda _: known)
        for cached in (transfer.relatives, transfer.time_coefficients):
            cached.cache_clear()
        assert transfer.time_coefficients(H100, "gemm", "trtllm", "fp8").fixed_kcycles < 8.0
        assert transfer.time_coefficients(H100, "gemm", "trtllm", "w8a8").fixed_kcycles > 12.0


@pytest.mark.parametrize(("sms", "within"), [(148, 0.005), (152, 0.15)])
def test_a_gpu_of_a_measured_chip_is_predicted_as_the_chip_is(sms, within):
    twin = replace(B200, name="SOME-B200", sm_count=sms)
    sizes = {name: np.array([64.0, 512.0, 4096.0, 8192.0]) for name in ("m", "n", "k")}
    for dtype in ("bf16", "fp8", "nvfp4"):
        table = op_table("gemm", {**sizes, "dtype": dtype})
        here, there = (price(table, gpu, Conditions(engine="trtllm")) for gpu in (B200, twin))
        (time_s, power_w), (its_s, its_w) = (at_clock(one, B200.clock_max_mhz) for one in (here, there))
        assert its_s == pytest.approx(time_s, rel=within)
        assert its_w == pytest.approx(power_w, rel=max(within, 0.01))


def test_the_rate_of_l2_in_fused_attention_is_the_hardwares_and_not_the_kernels(data_dir):
    """A100's heads are all 128 wide: nothing tells L2 from tensor cores there, and other widths ask of them unalike."""
    for pool in pools(data_dir, ("context_attention",), 1200):
        if pool.gpu.name == "A100-SXM-80GB":
            (found,) = fit_time(pool.work, pool.gpu, pool.time_s, pool.gpu.clock_max_mhz, source="test").values()
            assert 0.4 < found.l2_efficiency < 0.65
            assert found.error < 0.1


@pytest.mark.parametrize("chip", ["H100", "H200"])
def test_the_rate_of_dram_in_products_is_the_hardwares_and_not_the_formats(gemms, chip):
    """Narrow formats leave open whether DRAM, L2 or a chain of steps limits a stream: a sibling's memory tells."""
    (fits,) = (fits for pool, fits in gemms if pool.gpu.name.startswith(chip))
    assert {"bf16", "fp8", "fp8_block"} <= set(fits)
    for found in fits.values():
        assert 0.8 < found.dram_efficiency < 0.9


#: Operations of each family that serves models, small and large.
SERVED = {
    "gemm": {"m": [8, 4096], "n": 4096, "k": 4096, "dtype": "fp8"},
    "context_attention": {"batch_size": [1, 8], "query_len": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "generation_attention": {
        "batch_size": [1, 64], "past_len": 8192, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128
    },
    "encoder_attention": {"batch_size": [1, 16], "seq_len": 2048, "num_heads": 16, "head_dim": 64},
    "moe": {
        "num_tokens": [8, 8192], "hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 128, "dtype": "fp8"
    },
    "quantize": {"m": [16, 8192], "k": 7168, "quant_op": "dynamic_quant", "dtype": "fp8"},
}  # fmt: skip


def _times(kind, gpu, clock_mhz=None, engine="trtllm"):
    priced = price(op_table(kind, SERVED[kind]), gpu, Conditions(engine=engine))
    return at_clock(priced, clock_mhz or gpu.clock_max_mhz)[0]


@pytest.mark.parametrize("kind", SERVED)
def test_kernels_of_a_derivative_are_its_chips_whatever_it_is_called(kind):
    for engine in ("trtllm", "vllm") if kind != "quantize" else ("trtllm",):
        twin = _times(kind, replace(B200, name="SOME-B200"), engine=engine)
        assert twin == pytest.approx(_times(kind, B200, engine=engine), rel=0.01)


@pytest.mark.parametrize("kind", SERVED)
def test_a_derivative_goes_with_its_clock_and_sms(kind):
    own = _times(kind, B200)
    slow = replace(B200, name="SLOW-B200", clock_max_mhz=1700.0)
    ratio = _times(kind, slow) / own
    assert (ratio >= 0.995).all()
    assert (ratio <= 1965 / 1700 * 1.05).all()
    more = change_gpu(B200, {"sm_count": 152})
    ratio = _times(kind, replace(more, name="LARGE-B200")) / own
    # waves and learned factors step, but no kernel is faster than as many more SMs would make it by much, nor slower
    assert (ratio > 148 / 152 * 0.96).all()
    assert (ratio < 1.03).all()
    # called what it is or a what-if, it is the same GPU
    assert _times(kind, more) == pytest.approx(_times(kind, replace(more, name="LARGE-B200")), rel=0.03)


@pytest.mark.parametrize("kind", SERVED)
def test_fewer_sms_make_no_kernel_faster_and_more_make_none_slower(kind):
    own = _times(kind, B200)
    for sms in (112, 132, 144):
        assert (_times(kind, change_gpu(B200, {"sm_count": sms})) >= own * 0.999).all()
        assert (_times(kind, replace(change_gpu(B200, {"sm_count": sms}), name="CUT-B200")) >= own * 0.99).all()
    assert (_times(kind, change_gpu(B200, {"sm_count": 160})) <= own * 1.001).all()


@pytest.mark.parametrize("kind", ["context_attention", "encoder_attention", "generation_attention"])
def test_more_special_functions_make_no_kernel_slower(kind):
    more = replace(B200, name="MORE-B200", sfu_per_clk_sm=2 * B200.sfu_per_clk_sm)
    assert (_times(kind, more) <= _times(kind, B200) * 1.01).all()
