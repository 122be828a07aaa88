"""Convolutions in whole networks: layouts, depthwise kernels, shapes of networks, and steps left out of the fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.calibration.network_fit import NETWORK_STEPS, NetworkFit, leave_out, predicted_steps_s
from joulecast.calibration.networks import (
    NETWORKS,
    MeasuredNetwork,
    NetworkTable,
    read_networks,
    tabulate_networks,
    with_convolutions,
)
from joulecast.calibration.pass_fit import PASSES
from joulecast.calibration.pass_runs import read_passes
from joulecast.coefficients.schema import HostCoefficients, TimeCoefficients
from joulecast.coefficients.store import load
from joulecast.coefficients.transfer import host_coefficients, time_coefficients
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.convolution import convolution_work
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.physics.host import host_cost_us
from joulecast.physics.price import price
from joulecast.physics.timing import duration_s
from joulecast.workloads.catalogue import from_name
from joulecast.workloads.table import COMMON, OpTable, Workload, op_table

STREAM = Conditions(engine="pytorch", residency="stream")
GPUS = ("A100-SXM-40GB", "A10", "RTX-3090", "RTX-4090", "TITAN-V", "T4", "H100-SXM-80GB")


def work_of(gpu: str, **columns: object) -> KernelWork:
    return convolution_work(op_table("conv2d", columns), load_gpu(gpu), STREAM)


def seconds_of(gpu: str, **columns: object) -> float:
    described = load_gpu(gpu)
    return float(duration_s(price(op_table("conv2d", columns), described, STREAM).times, described, 1000.0)[0])


shapes = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 64),
        "in_channels": st.sampled_from([3, 16, 64, 96, 256, 512]),
        "out_channels": st.sampled_from([16, 64, 144, 512]),
        "height": st.sampled_from([7, 14, 28, 56, 112]),
        "kernel_h": st.sampled_from([1, 3, 5]),
        "stride": st.sampled_from([1, 2]),
        "dtype": st.sampled_from(["fp16", "bf16", "fp32"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(gpu=st.sampled_from(GPUS), shape=shapes)
def test_channels_last_is_never_slower_and_trying_kernels_out_never_harms(gpu: str, shape: dict[str, object]) -> None:
    first = seconds_of(gpu, **shape)
    assert seconds_of(gpu, **shape, channels_last=1) <= first * (1 + 1e-9)
    assert seconds_of(gpu, **shape, autotuned=1) <= first * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    batch=st.integers(1, 128),
    channels=st.sampled_from([32, 96, 384, 960]),
    size=st.sampled_from([7, 14, 56, 112]),
    kernel=st.sampled_from([3, 5, 7]),
    last=st.sampled_from([0, 1]),
    dtype=st.sampled_from(["fp16", "bf16", "fp32"]),
)
def test_a_depthwise_convolution_takes_at_least_as_long_as_l2_needs_for_its_bytes(
    gpu: str, batch: int, channels: int, size: int, kernel: int, last: int, dtype: str
) -> None:
    described = load_gpu(gpu)
    moved = 2 * batch * channels * size * size * (4 if dtype == "fp32" else 2)
    shape = {"batch_size": batch, "in_channels": channels, "out_channels": channels, "groups": channels, "height": size,
             "kernel_h": kernel, "padding": kernel // 2, "channels_last": last, "dtype": dtype}  # fmt: skip
    work = work_of(gpu, **shape)
    assert work.tensor_flop[0] == 0
    assert work.l2_bytes[0] >= moved
    assert seconds_of(gpu, **shape) >= moved / (described.l2_bytes_per_clk * 1e9)


def test_tensor_core_kernels_turn_feature_maps_that_lie_channel_by_channel() -> None:
    # 8 images of 64 x 56 x 56 in fp16 are 3,211,264 B; read and written twice: in and out
    shape = {"batch_size": 8, "in_channels": 64, "out_channels": 64, "height": 56, "kernel_h": 3, "padding": 1,
             "dtype": "fp16"}  # fmt: skip
    first, last = work_of("A100-SXM-40GB", **shape), work_of("A100-SXM-40GB", **shape, channels_last=1)
    turned = 2 * 2 * 8 * 64 * 56 * 56 * 2
    l2 = first.serial_l2_bytes + first.serial_dram_bytes
    assert l2[0] == pytest.approx(turned)
    assert last.serial_l2_bytes[0] == last.serial_dram_bytes[0] == 0
    assert (first.launches[0], last.launches[0]) == (3, 1)


def test_tuned_filters_of_one_tap_turn_nothing_where_pixels_make_whole_vectors() -> None:
    shape = {"batch_size": 8, "in_channels": 64, "out_channels": 256, "kernel_h": 1, "dtype": "fp16", "autotuned": 1}
    assert work_of("A10", **shape, height=28).launches[0] == 1  # 784 pixels, 98 vectors of 8
    assert work_of("A10", **shape, height=14).launches[0] == 3  # 196 pixels, 24.5 vectors
    assert work_of("A10", **{**shape, "autotuned": 0}, height=28).launches[0] == 3


def test_only_tensor_cores_turn_feature_maps() -> None:
    shape = {"batch_size": 8, "in_channels": 64, "out_channels": 64, "height": 56, "kernel_h": 5, "padding": 2}
    assert work_of("A100-SXM-40GB", **shape, dtype="fp32").launches[0] == 1
    assert work_of("GTX-1080-TI", **shape, dtype="fp16").launches[0] == 1


def test_kernels_within_an_operation_cost_the_host_less_than_operations() -> None:
    host = HostCoefficients(eager_us=10.0, module_us=20.0)
    one, three = host_cost_us("conv2d", np.array([1.0, 3.0]), host, "eager")
    assert one == pytest.approx(30.0)
    assert one < three < one + 2 * 10.0


#: Published parameter counts: torchvision's and timm's model tables.
PARAMETERS = {
    "resnext50-32x4d": 25_028_904,
    "resnext101-32x8d": 88_791_336,
    "wide-resnet50-2": 68_883_240,
    "mobilenet-v2": 3_504_872,
    "squeezenet1-0": 1_248_424,
    "squeezenet1-1": 1_235_496,
    "vgg11-bn": 132_868_840,
    "vgg16-bn": 138_365_992,
    "convmixer-768-32": 21_110_248,
}
#: Multiply-adds of one image of 224 x 224, in 1e9: torchvision's model table.
GMACS = {"resnext50-32x4d": 4.23, "resnext101-32x8d": 16.41, "mobilenet-v2": 0.30, "squeezenet1-1": 0.35}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert from_name(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GMACS)
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    assert from_name(name).flop("matmul") / 2e9 == pytest.approx(GMACS[name], rel=0.02)


def test_a_network_reads_its_image_in_each_group_once() -> None:
    rows = from_name("resnext50-32x4d").tables["conv2d"]
    grouped = rows["groups"] == 32
    assert (rows["kernel_h"][grouped] == 3).all()
    assert sorted(set((rows["in_channels"] / rows["groups"])[grouped])) == [4, 8, 16, 32]


def test_networks_of_the_tables_are_in_the_catalogue() -> None:
    for name, _ in NETWORKS.values():
        assert from_name(name).parameters > 1e6


def test_biases_of_convolutions_are_launches_of_their_own() -> None:
    with_bias, without = from_name("vgg11"), from_name("resnet-18")
    assert "bias" in with_bias.tables["elementwise"].words("op")
    assert "bias" not in without.tables["elementwise"].words("op")


def test_all_convolutions_of_a_workload_change_layout_together() -> None:
    workload = with_convolutions(from_name("resnet-18"), channels_last=1.0)
    assert (workload.tables["conv2d"]["channels_last"] == 1).all()
    assert gpu_seconds(workload, "A10") < gpu_seconds(from_name("resnet-18"), "A10")


def test_steps_are_fitted_with_the_corrections_that_predictions_have() -> None:
    gpu = load_gpu("titan-v")
    forward = with_convolutions(from_name("microsoft/resnet-50", batch=12, image_size=224, dtype="fp32"), autotuned=1.0)
    run = MeasuredNetwork("torchvision", "resnet50", "resnet", gpu.name, "fp32", forward, False, 0.03, 0.0)
    table = tabulate_networks([run])
    shipped = {one.key: time_coefficients(gpu, *one.key.split("/", 2)) for one in table.kernels}
    fit = NetworkFit(shipped, {}, 0.0, 0.0, 1.0)
    told = [
        (price(OpTable(part.kind, {k: v for k, v in part.columns.items() if k not in COMMON}), gpu, STREAM), part)
        for part in lower(forward, gpu, Execution(launch_mode="eager")).tables.values()
    ]
    clock = table.kernels[0].clock_mhz[0]
    predicted_s = sum(float(part["count"] @ duration_s(priced.times, gpu, clock)) for priced, part in told)
    # a factor on the time of a pass comes from whole passes, later
    assert predicted_steps_s(fit, table)[0] == pytest.approx(predicted_s, rel=1e-6)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"torchvision_step_times\.csv"):
        read_networks(tmp_path)


@pytest.fixture(scope="module")
def networks(data_dir: Path) -> list[MeasuredNetwork]:
    return read_networks(data_dir / "training")


# All rows count, with the ConvMixers whose 9 x 9 filters run in other kernels where channels lie together.
@pytest.mark.parametrize(("gpu", "bound"), [("RTX-3090", 0.07), ("GTX-1080-TI", 0.085)])
def test_steps_of_a_network_left_out_of_the_fit(networks: list[MeasuredNetwork], gpu: str, bound: float) -> None:
    runs = [run for run in networks if run.gpu == gpu]
    assert len(runs) >= 20
    errors = leave_out(runs, tabulate_networks(runs))
    assert np.mean(np.abs(errors)) < bound


@pytest.mark.parametrize(
    ("gpu", "bound"), [("RTX-3090", 0.08), ("RTX-4090", 0.08), ("TITAN-RTX", 0.12), ("A100-SXM-40GB", 0.25)]
)
def test_shipped_coefficients_say_what_the_fit_said(networks: list[MeasuredNetwork], gpu: str, bound: float) -> None:
    runs = [run for run in networks if run.gpu == gpu]
    table = tabulate_networks(runs)
    shipped = {one.key: time_coefficients(table.gpu, *one.key.split("/", 2)) for one in table.kernels}
    host = host_coefficients(table.gpu)
    fit = NetworkFit(shipped, {}, host.eager_us, host.module_us, copy_gb_s=5.0)
    errors = predicted_steps_s(fit, table) / table.time_s - 1
    assert np.mean(np.abs(errors)) < bound
    convolutions = [key for key in shipped if key.startswith("conv2d") and "depthwise/tf32" not in key]
    big = [key for key in convolutions if "direct" in key or "winograd" in key]
    assert big
    assert all(shipped[key].provenance == "fitted" for key in big if table_share(table, key, shipped[key]) > 0.03)


def table_share(table: NetworkTable, key: str, coefficients: TimeCoefficients) -> float:
    """Largest share that kernels of `key` have of a step."""
    alone = replace(table, kernels=tuple(one for one in table.kernels if one.key == key))
    nothing = replace(
        alone, launches=alone.launches * 0, modules=alone.modules * 0, copied_bytes=alone.copied_bytes * 0
    )
    return float(np.max(predicted_steps_s(NetworkFit({key: coefficients}, {}, 1.0, 1.0, 1.0), nothing) / table.time_s))


@pytest.mark.parametrize("stage", [PASSES])
def test_one_stage_does_not_take_the_entries_of_another(stage: str) -> None:
    for gpu in ("RTX-3090", "RTX-4090", "TITAN-V", "TITAN-RTX", "RTX-2080-TI", "GTX-1080-TI"):
        kept = load(gpu)
        assert kept is not None
        ours = [one for one in kept.time.values() if NETWORK_STEPS in one.source]
        assert len(ours) > 3
        assert not any(stage in one.source for one in ours)


def gpu_seconds(workload: Workload, gpu: str, clock_mhz: float = 900.0, exclude: tuple[str, ...] = ()) -> float:
    """Time of all kernels of a pass in eager PyTorch. [s]."""
    described = load_gpu(gpu)
    total = 0.0
    for table in lower(workload, described, Execution(attention="eager")).tables.values():
        shapes = OpTable(table.kind, {name: column for name, column in table.columns.items() if name not in COMMON})
        priced = price(shapes, described, STREAM, exclude=exclude)
        total += float(table["count"] @ duration_s(priced.times, described, clock_mhz))
    return total


@pytest.mark.parametrize("gpu", ["A100-PCIE-40GB", "A10"])
def test_mobilevit_by_what_other_networks_on_other_gpus_show(data_dir: Path, gpu: str) -> None:
    runs = [
        run
        for run in read_passes(data_dir / "energaizer")
        if run.gpu == gpu and run.model.startswith("mobilevit") and run.label.split()[3] in ("b32", "b64")
    ]
    assert len(runs) == 2
    for run in runs:
        # both GPUs were measured with this network: neither has a say
        unseen = gpu_seconds(run.workload, gpu, exclude=("A100-PCIE-40GB", "A10"))
        assert unseen == pytest.approx(run.time_s, rel=0.25)
