"""The GPU catalogue: facts, names, files of one's own, what-if hardware, and refusals."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulecast.bounds.limits import GPU_RANGES, Range, check_gpu, number
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import Gpu, gpu_names, load_gpu, resolve
from joulecast.gpus.changes import SET_BY_USER, changeable_fields
from joulecast.gpus.describe import describe
from joulecast.gpus.names import DATA, canonical, index
from joulecast.gpus.reader import LAYOUT, MAX_FILE_BYTES, RATE_TABLES, read_gpu_text

ALL = gpu_names()
A100_TEXT = (DATA / "a100-sxm-80gb.toml").read_text("utf-8")

# Boards that people ask for; further ones are welcome.
# fmt: off
WANTED = (
    "A100-PCIE-40GB", "A100-PCIE-80GB", "A100-SXM-40GB", "A100-SXM-80GB", "A10", "A30", "A40", "A800-PCIE-80GB",
    "A800-SXM-80GB", "RTX-A4000", "RTX-A5000", "RTX-A6000", "RTX-2080-TI", "TITAN-RTX", "QUADRO-RTX-6000",
    "RTX-3070", "RTX-3090", "RTX-4000-ADA", "RTX-6000-ADA", "RTX-4090", "RTX-5090", "RTX-PRO-6000-BLACKWELL",
    "T4", "V100-PCIE-16GB", "V100-PCIE-32GB", "V100-SXM-16GB", "V100-SXM-32GB", "P100-PCIE-16GB", "P4", "L4",
    "L40S", "H100-SXM-80GB", "H100-PCIE-80GB", "H100-NVL-94GB", "H20-SXM-96GB", "H200-SXM-141GB", "GH200-96GB",
    "B200-SXM-180GB", "B300-SXM-288GB", "GB200-186GB", "GB300-288GB", "GTX-1080-TI", "GTX-750-TI", "TITAN-V",
    "MI100", "MI210", "MI250", "MI250X", "MI300X",
)
# fmt: on


def test_every_wanted_board_is_catalogued():
    assert set(WANTED) <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_number_of_a_catalogue_file_has_its_source(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    document = tomllib.loads((DATA / f"{name.lower()}.toml").read_text("utf-8"))
    fields = {field for table, keys in LAYOUT.items() for key, field in keys.items() if key in document.get(table, {})}
    fields |= {f"{table}.{key}" for table in RATE_TABLES for key in document.get(table, {}) if key != "source"}
    assert fields | set(GPU_RANGES) <= set(gpu.sources)
    # A source that the reader filled in would be the name of the file: the catalogue states its own.
    assert not [field for field, source in gpu.sources.items() if ".toml" in source or not source]


@pytest.mark.parametrize("name", ALL)
def test_tensor_rates_are_a_round_number_of_flop_a_clock_in_each_sm(name):
    gpu = load_gpu(name)
    for math_name in gpu.tensor_tflops:
        flop = gpu.tensor_flop_per_clk(math_name) / gpu.sm_count
        # Tensor cores multiply tiles whose sides are powers of two; Blackwell Ultra's fp4 is three halves of one.
        powers = [flop, flop * 2 / 3]
        assert any(math.isclose(power, 2 ** round(math.log2(power)), rel_tol=1e-4) for power in powers)


# Data sheets and whitepapers of the vendors; dense. [TFLOP/s], FLOP/clk an SM
@pytest.mark.parametrize(
    ("name", "math_name", "tflops", "flop_per_clk_sm"),
    [
        ("A100-SXM-80GB", "bf16", 312, 2048),
        ("A100-SXM-80GB", "tf32", 156, 1024),
        ("A100-PCIE-40GB", "int8", 624, 4096),
        ("A30", "bf16", 165, 2048),
        ("A10", "bf16", 125, 1024),
        ("A40", "bf16", 149.7, 1024),
        ("A2", "bf16", 18.1, 1024),
        ("H100-SXM-80GB", "bf16", 989.4, 4096),
        ("H100-SXM-80GB", "fp8", 1978.9, 8192),
        ("H100-PCIE-80GB", "bf16", 756, 4096),
        ("H100-NVL-94GB", "bf16", 835, 4096),
        ("H200-SXM-141GB", "bf16", 989.4, 4096),
        ("H20-SXM-96GB", "bf16", 148, 1024),
        ("B200-SXM-180GB", "bf16", 2250, 8192),
        ("B200-SXM-180GB", "fp8", 4500, 16384),
        ("B200-SXM-180GB", "fp4", 9000, 32768),
        ("GB200-186GB", "fp4", 10000, 32768),
        ("B300-SXM-288GB", "fp4", 13500, 49152),
        ("L40S", "fp8", 733, 2048),
        ("L40", "fp16", 181, 512),
        ("L4", "bf16", 121, 1024),
        ("RTX-4090", "bf16", 165.2, 512),
        ("RTX-4090", "int8", 660.6, 2048),
        ("RTX-6000-ADA", "fp16", 364.2, 1024),
        ("RTX-3090", "fp16", 71, 512),
        ("RTX-A6000", "fp16", 154.8, 1024),
        ("RTX-5090", "fp16", 209.5, 512),
        ("RTX-5090", "fp4", 1676, 4096),
        ("T4", "fp16", 65, 1024),
        ("RTX-2080-TI", "fp16", 53.8, 512),
        ("V100-SXM-32GB", "fp16", 125, 1024),
        ("V100-PCIE-16GB", "fp16", 112, 1024),
        ("MI100", "fp16", 184.6, 1024),
        ("MI250X", "fp16", 383, 1024),
        ("MI300X", "bf16", 1307.4, 2048),
    ],
)
def test_dense_tensor_rates_are_those_of_the_data_sheets(name, math_name, tflops, flop_per_clk_sm):
    gpu = load_gpu(name)
    assert gpu.tensor_tflops[math_name] == pytest.approx(tflops, rel=0.006)
    assert gpu.tensor_flop_per_clk(math_name) / gpu.sm_count == pytest.approx(flop_per_clk_sm, rel=1e-4)


# CUDA cores: fp32 rates of data sheets at their boost clock; CUDA programming guide for the rest. [FLOP/clk an SM]
@pytest.mark.parametrize(
    ("name", "math_name", "flop_per_clk_sm"),
    [
        ("A100-SXM-80GB", "fp32", 128),
        ("A100-SXM-80GB", "fp16", 512),
        ("A100-SXM-80GB", "bf16", 256),
        ("A100-SXM-80GB", "fp64", 64),
        ("H100-SXM-80GB", "fp32", 256),
        ("V100-SXM-32GB", "fp16", 256),
        ("P100-PCIE-16GB", "fp16", 256),
        ("A10", "fp32", 256),
        ("P4", "fp32", 256),
        ("T4", "fp32", 128),
        ("MI300X", "fp32", 256),
    ],
)
def test_cuda_core_rates(name, math_name, flop_per_clk_sm):
    gpu = load_gpu(name)
    assert gpu.cuda_flop_per_clk(math_name) / gpu.sm_count == pytest.approx(flop_per_clk_sm, rel=1e-4)


# name, SMs, memory GB, GB/s, default and highest power limit W, highest core clock MHz: data sheets, drivers
@pytest.mark.parametrize(
    ("name", "sm_count", "dram_gib", "dram_gb_s", "limit_w", "max_mhz"),
    [
        ("A100-PCIE-40GB", 108, 40, 1555, 250, 1410),
        ("A100-SXM-80GB", 108, 80, 2039, 400, 1410),
        ("H100-SXM-80GB", 132, 80, 3352, 700, 1980),
        ("H200-SXM-141GB", 132, 141, 4800, 700, 1980),
        ("B200-SXM-180GB", 148, 180, 7700, 1000, 1965),
        ("L40S", 142, 48, 864, 350, 2520),
        ("V100-SXM-32GB", 80, 32, 900, 300, 1530),
        ("V100-PCIE-32GB", 80, 32, 900, 250, 1380),
        ("T4", 40, 16, 320, 70, 1590),
        ("A10", 72, 24, 600, 150, 1695),
        ("A40", 84, 48, 696, 300, 1740),
        ("P100-PCIE-16GB", 56, 16, 732, 250, 1328),
        ("P4", 20, 8, 192, 75, 1531),
        ("L4", 58, 24, 300, 72, 2040),
        ("MI210", 104, 64, 1638.4, 300, 1700),
    ],
)
def test_size_memory_power_and_clock(name, sm_count, dram_gib, dram_gb_s, limit_w, max_mhz):
    gpu = load_gpu(name)
    found = (gpu.sm_count, gpu.dram_gib, gpu.dram_gb_s, gpu.power_limit_default_w, gpu.clock_max_mhz)
    assert found == (sm_count, dram_gib, dram_gb_s, limit_w, max_mhz)


def test_a_format_that_the_cores_lack_has_no_rate():
    assert "fp8" not in load_gpu("A100-SXM-80GB").tensor_tflops
    assert "bf16" not in load_gpu("T4").tensor_tflops
    assert "bf16" not in load_gpu("V100-SXM-32GB").tensor_tflops
    assert "fp4" not in load_gpu("H100-SXM-80GB").tensor_tflops
    assert dict(load_gpu("P100-PCIE-16GB").tensor_tflops) == {}
    assert load_gpu("H100-SXM-80GB").tensor_flop_per_clk("fp4") == 0


def test_sparsity_is_kept_apart():
    gpu = load_gpu("H100-SXM-80GB")
    assert gpu.tensor_sparse_tflops["bf16"] == pytest.approx(2 * gpu.tensor_tflops["bf16"], rel=1e-5)
    assert dict(load_gpu("V100-SXM-32GB").tensor_sparse_tflops) == {}


def test_curves_have_few_points_and_follow_the_readings(data_dir):
    table = data_dir / "energaizer" / "voltage_idle_power.csv"
    if not table.is_file():
        pytest.skip("no voltage and idle readings in the data folder")
    readings = pl.read_csv(table).filter(pl.col("core_clock_mhz") > 350)
    for (name,) in readings.select("gpu").unique().iter_rows():
        gpu = load_gpu(name)
        rows = readings.filter(pl.col("gpu") == name)
        for points, column, tolerance in (
            (gpu.idle_points, "idle_power_w", 1.5),
            (gpu.voltage_points, "core_voltage_mv", 11),
        ):
            assert len(points) <= 6
            measured = rows.drop_nulls(column)
            if measured.is_empty():
                assert points == ()
                continue
            for clock, value in measured.select("core_clock_mhz", column).iter_rows():
                assert _interpolate(points, clock) == pytest.approx(value, abs=tolerance)


def _interpolate(points, clock):
    for (left, low), (right, high) in itertools.pairwise(points):
        if clock <= right:
            return low + (high - low) * (clock - left) / (right - left)
    return points[-1][1]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100-SXM-80GB"),
        ("H100-SXM5-80GB", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("h100_sxm", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIE-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("h200_sxm", "H200-SXM-141GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("a100-80gb-pcie", "A100-PCIE-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("8 x NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 - PCIe - 80 GB", "A100-PCIE-80GB"),
        ("a100_40gb", "A100-SXM-40GB"),
        ("v100", "V100-SXM-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"),
        ("Tesla T4", "T4"),
        ("b200_sxm", "B200-SXM-180GB"),
        ("rtx4090", "RTX-4090"),
        ("2080ti", "RTX-2080-TI"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX-3060-LAPTOP"),
        ("NVIDIA RTX 4000 Ada Generation", "RTX-4000-ADA"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-ADA"),
        ("Quadro RTX 6000", "QUADRO-RTX-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-BLACKWELL"),
        ("AMD Instinct MI250X", "MI250X"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA H20", "H20-SXM-96GB"),
    ],
)
def test_what_people_and_drivers_write_resolves(typed, name):
    assert resolve(typed)[0].name == name


@pytest.mark.parametrize("family", ["a100", "h100", "v100", "A100", "nvidia h100", "rtx 6000", "a100-pcie"])
def test_a_name_that_leaves_something_open_says_what_it_means(family):
    gpu, note = resolve(family)
    assert note == f"{family} means {gpu.name}"


@pytest.mark.parametrize("name", [*ALL, "A10", "NVIDIA H100 80GB HBM3", "Quadro RTX 6000", "NVIDIA A100-SXM4-80GB"])
def test_a_full_name_needs_no_note(name):
    assert resolve(name)[1] == ""


def test_no_two_boards_share_a_name():
    owner: dict[str, str] = {}
    for entry in index().entries.values():
        for name in (entry.name, *entry.aliases, *entry.shorthand):
            assert owner.setdefault(canonical(name, memory_kind=True), entry.name) == entry.name


@pytest.mark.parametrize("name", ALL)
def test_every_alias_of_a_board_leads_to_it(name):
    gpu = load_gpu(name)
    assert {resolve(alias)[0].name for alias in gpu.aliases} <= {name}


def test_every_gpu_named_in_the_data_resolves_or_is_refused_by_name(data_dir):
    named: dict[str, Path] = {}
    for path in sorted([*data_dir.rglob("*.csv"), *data_dir.rglob("*.parquet")]):
        scan = pl.scan_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.scan_parquet(path)
        schema = scan.collect_schema()
        for column in ("gpu", "gpu_model", "device_name", "hardware", "accelerator"):
            if schema.get(column) == pl.String:
                values = scan.select(pl.col(column).unique()).collect()[column].drop_nulls()
                named.update(dict.fromkeys(values.to_list(), path))
    for manifest in data_dir.rglob("manifest.json"):
        named.update({row["gpu"]: manifest for row in json.loads(manifest.read_text("utf-8")) if row.get("gpu")})
    assert len(named) > 20
    others = ("intel", "gaudi", "sambanova", "qualcomm", "untether", "orin", "xavier", "mali")
    for name, path in named.items():
        if name == "-":
            continue
        if any(word in name.lower() for word in others):
            with pytest.raises(InputError, match="is not a CUDA or ROCm GPU that joulecast describes") as caught:
                resolve(name)
            assert str(caught.value).startswith(name), path
        else:
            assert resolve(name)[0].vendor in ("nvidia", "amd"), path


@pytest.mark.parametrize(
    "name",
    ["Intel Max 1550", "Intel PVC GPU", "Habana Gaudi2", "SambaNova SN40L", "NVIDIA Orin", "Arm Mali-G52 MP6 GPU"],
)
def test_other_accelerators_are_refused_by_name(name):
    with pytest.raises(InputError, match=f"^{name} is not a CUDA or ROCm GPU that joulecast describes"):
        load_gpu(name)


@pytest.mark.parametrize(("typed", "near"), [("h1000", "h100"), ("RTX 4091", "RTX-4090"), ("l40x", "L40S")])
def test_a_wrong_name_suggests_the_nearest(typed, near):
    with pytest.raises(UnknownNameError, match=near):
        load_gpu(typed)


def test_more_sms_keep_flop_per_clock_per_sm_and_l2():
    base, changed = load_gpu("h100"), load_gpu("h100", {"sm_count": "160"})
    assert changed.name == "H100-SXM-80GB+sm_count=160"
    assert changed.sm_count == 160
    for math_name in base.tensor_tflops:
        assert changed.tensor_tflops[math_name] == pytest.approx(base.tensor_tflops[math_name] * 160 / 132)
    assert changed.tensor_sparse_tflops["fp8"] == pytest.approx(base.tensor_sparse_tflops["fp8"] * 160 / 132)
    assert changed.cuda_tflops["fp32"] == pytest.approx(base.cuda_tflops["fp32"] * 160 / 132)
    assert changed.l2_gb_s == base.l2_gb_s
    assert changed.sources["sm_count"] == SET_BY_USER
    assert changed.sources["dram_gb_s"] == base.sources["dram_gb_s"]
    assert "scaled" in changed.sources["tensor_tflops.bf16"]


def test_another_rate_clock_keeps_work_per_clock():
    base, changed = load_gpu("h100"), load_gpu("h100", {"rate_clock_mhz": 1980})
    assert changed.tensor_flop_per_clk("bf16") == pytest.approx(base.tensor_flop_per_clk("bf16"))
    assert changed.l2_bytes_per_clk == pytest.approx(base.l2_bytes_per_clk)


def test_a_rate_set_in_the_same_call_stands():
    changed = load_gpu("h100", {"sm_count": 160, "tensor_tflops.bf16": 1200})
    assert changed.tensor_tflops["bf16"] == 1200
    assert changed.tensor_tflops["fp8"] == pytest.approx(load_gpu("h100").tensor_tflops["fp8"] * 160 / 132)
    assert changed.sources["tensor_tflops.bf16"] == SET_BY_USER


def test_a_changed_gpu_leaves_the_catalogue_as_it_was():
    load_gpu("l40s", {"dram_gb_s": 4000})
    assert load_gpu("l40s").dram_gb_s == 864


def test_changes_apply_to_a_gpu_and_to_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(A100_TEXT.replace('"A100-SXM-80GB"', '"Mine"', 1), "utf-8")
    assert load_gpu(file).name == load_gpu(str(file)).name == "Mine"
    assert load_gpu(load_gpu(file), {"l2_mib": 80}).l2_mib == 80
    bare = tmp_path / "mine"
    bare.write_text(A100_TEXT, "utf-8")
    assert load_gpu(str(bare)).name == "A100-SXM-80GB"


# Unit slips and contradictions: what was given, what the line must say.
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dram_gb_s": 3.35}, "dram_gb_s = 3.35 GB/s is not plausible.*TB/s.*3350"),
        ({"dram_gb_s": 3350000}, "GB/s is not plausible.*MB/s.*3350"),
        ({"dram_gb_s": -1}, "dram_gb_s = -1 GB/s"),
        ({"dram_gb_s": "nan"}, "dram_gb_s must be finite"),
        ({"dram_gb_s": "inf"}, "dram_gb_s must be finite"),
        ({"dram_gb_s": True}, "dram_gb_s must be a number"),
        ({"dram_gb_s": "fast"}, "dram_gb_s must be a number"),
        ({"clock_max_mhz": 1.98}, "clock_max_mhz = 1.98 MHz is not plausible.*GHz.*1980"),
        ({"tensor_tflops.bf16": 989e12}, "tensor_tflops.bf16 = 9.89e.14 TFLOP/s is not plausible.*FLOP/s.*989"),
        ({"tensor_tflops.bf16": 9890}, "bf16.*FLOP/clk an SM|sparse"),
        ({"l2_mib": 52428800}, "l2_mib.*bytes.*50"),
        ({"power_limit_default_w": 800}, "power_limit_default_w = 800 W exceeds power_limit_max_w = 700 W"),
        ({"idle_w": 900}, "idle_w = 900 W is not below"),
        ({"clock_max_mhz": 1500}, "clock_boost_mhz = 1830 MHz exceeds clock_max_mhz = 1500 MHz"),
        ({"sm_count": 132.5}, "sm_count = 132.5 must be a whole number"),
        ({"sm_count": 0}, "sm_count = 0"),
        ({"dram_gb_s": 20000}, "dram_gb_s = 20000 GB/s exceeds l2_gb_s"),
        ({"dram_type": "../x"}, "dram_type must be a short plain text"),
        ({"sm_cout": 160}, "unknown GPU field 'sm_cout': did you mean sm_count"),
        ({"tensor_tflops.bf17": 160}, "did you mean tensor_tflops.bf16"),
    ],
)
def test_impossible_hardware_is_refused_with_field_and_reason(changes, said):
    with pytest.raises(InputError, match=said) as caught:
        load_gpu("h100", changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count = {", "cuont = {", "cuont.*did you mean count"),
        ("l2_mib = 40", "l2_mib = '40'", "l2_mib must be a number"),
        ("l2_mib = 40", "", "l2_mib is missing"),
        ("l2_mib = 40", "l2_mib = nan", "l2_mib must be finite"),
        ("l2_mib = 40", "l2_mib = { size = 40 }", "memory.l2_mib must be a value"),
        ('dram_type = "HBM2e"', "", "dram_type is missing"),
        ('vendor = "nvidia"', 'vendor = "acme"', "vendor must be nvidia or amd"),
        ('name = "A100-SXM-80GB"', 'name = "../../elsewhere"', "name must be 1 to 80 letters"),
        ('name = "A100-SXM-80GB"', 'name = ""', "name must be 1 to 80 letters"),
        ("[memory]", "[memory", "no valid TOML"),
        ("[memory]", "[memery]", "memery.*did you mean memory"),
        ("fp32 = 19", "fp33 = 19", "fp33.*did you mean fp32"),
        ("[1111, 743.75]", "[111, 743.75]", "must rise in clock"),
        ("[1111, 743.75]", "[1111, 0.74375]", "voltage_points = 0.74375 mV is not plausible.*743.75"),
    ],
)
def test_a_wrong_file_is_refused_with_one_line(tmp_path, old, new, said):
    assert old in A100_TEXT
    file = tmp_path / "wrong.toml"
    file.write_text(A100_TEXT.replace(old, new, 1), "utf-8")
    with pytest.raises(InputError, match=said) as caught:
        load_gpu(file)
    assert "\n" not in str(caught.value)
    assert "wrong.toml" in str(caught.value)


def test_files_that_are_no_text_are_refused(tmp_path):
    missing, binary, large = tmp_path / "none.toml", tmp_path / "binary.toml", tmp_path / "large.toml"
    binary.write_bytes(b"name = \xff\xfe")
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for path, said in (
        (missing, "No such file"),
        (binary, "not UTF-8"),
        (large, "over 1 MB"),
        (Path("a\0.toml"), "can't read"),
        (tmp_path, "can't read"),
    ):
        with pytest.raises(InputError, match=said):
            load_gpu(path)


def test_a_file_without_sources_names_itself_as_the_source(tmp_path):
    lines = [line for line in A100_TEXT.splitlines() if not line.startswith("source")]
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(lines), "utf-8")
    assert load_gpu(file).sources["dram_gb_s"] == "the file mine.toml"


def refusal(act):
    """The line with which `act` is refused, empty if it isn't; any other error fails the test."""
    try:
        act()
    except InputError as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None)
@given(name=st.text(max_size=300))
@example(name="h100\0")
@example(name="/" * 5000)
def test_any_text_is_a_gpu_or_one_clear_line(name):
    line = refusal(lambda: resolve(name))
    assert "\n" not in line
    assert line or isinstance(resolve(name)[0], Gpu)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(changeable_fields()) | st.text(max_size=20),
        st.floats() | st.integers() | st.booleans() | st.text(max_size=10) | st.just(10**400),
        min_size=1,
        max_size=3,
    )
)
def test_any_change_is_a_possible_gpu_or_one_clear_line(changes):
    line = refusal(lambda: load_gpu("a100", changes))
    assert "\n" not in line
    if not line:
        check_gpu(vars(load_gpu("a100", changes)))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_file_is_a_possible_gpu_or_one_clear_line(data):
    lines = A100_TEXT.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    junk = st.sampled_from(["nan", "-1", "true", "'x'", "[]", "[[1,2]]", "{}", "1e999", "[1,2", "{value=1}"])
    lines[place] = data.draw(st.text(max_size=40) | junk.map(lambda value: f"{lines[place].split('=')[0]} = {value}"))
    text = "\n".join(lines)
    line = refusal(lambda: read_gpu_text(text, "a test"))
    assert "\n" not in line
    if not line:
        check_gpu(vars(read_gpu_text(text, "a test")))


@settings(max_examples=100, deadline=None)
@given(value=st.floats() | st.integers() | st.text() | st.none() | st.booleans() | st.binary() | st.complex_numbers())
def test_a_number_is_finite_and_in_range_or_refused(value):
    limits = Range(1, 10, "GB/s")
    line = refusal(lambda: number("rate", value, limits))
    assert line.startswith("rate") if line else 1 <= number("rate", value, limits) <= 10


def test_a_gpu_as_rows_shows_every_field_with_unit_and_source():
    rows = {row[0]: row for row in describe(load_gpu("A100-PCIE-40GB"))}
    assert rows["dram_gb_s"][1:3] == ("1555", "GB/s")
    assert rows["sm_count"][1] == "108"
    assert rows["tensor_tflops.bf16"][1:3] == ("311.9", "TFLOP/s")
    assert rows["voltage_points"][1].startswith("210:693.75 ")
    assert all(rows[field][3] for field in GPU_RANGES)


def test_a_gpu_can_be_hashed_and_compared():
    assert {load_gpu("a100"), load_gpu("A100-SXM-80GB")} == {load_gpu("a100 sxm")}
