"""Coefficient files and their transfer to GPUs that were never measured."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.coefficients import likeness, store, transfer
from joulecast.coefficients.energies import default_power
from joulecast.coefficients.schema import (
    PROVENANCES,
    TIME_PARAMETERS,
    GpuCoefficients,
    HostCoefficients,
    PowerCoefficients,
    TimeCoefficients,
)
from joulecast.errors import InputError
from joulecast.gpus import gpu_names, load_gpu
from joulecast.kernels.registry import families
from joulecast.lowering.execution import ENGINES
from joulecast.physics.power import static_power_w

GPUS = [load_gpu(name) for name in gpu_names()]
gpus = st.sampled_from(GPUS)
FAMILIES = sorted({family.name for family in families().values()})

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
efficiencies = st.floats(0.01, 1)
positives = st.floats(0, 1e6)
times = st.builds(
    TimeCoefficients,
    tensor_efficiency=efficiencies,
    dram_efficiency=efficiencies,
    fixed_us=positives,
    sharpness=st.floats(1, 30),
    provenance=st.sampled_from(PROVENANCES),
    source=texts,
    rows=st.integers(0, 10**6),
    spread90=st.floats(0, 3),
)
powers = st.builds(
    PowerCoefficients,
    idle_w=positives,
    clocked_w=positives,
    active_w=positives,
    tensor_pj=st.dictionaries(st.sampled_from(["fp16", "bf16", "fp8"]), positives),
    cuda_pj=st.dictionaries(st.sampled_from(["fp32", "fp64"]), positives),
    sfu_pj=positives,
    shared_pj=positives,
    l2_pj=positives,
    dram_pj=positives,
    source=texts,
)
names = st.tuples(st.sampled_from(FAMILIES), st.sampled_from(ENGINES), texts.filter(bool)).map("/".join)
files = st.builds(
    GpuCoefficients,
    gpu=texts,
    time=st.dictionaries(names, times, max_size=4),
    power=st.none() | powers,
    host=st.none() | st.builds(HostCoefficients, eager_us=positives, module_us=positives, source=texts),
)

SMALL = GpuCoefficients("A100-SXM-80GB", {"gemm/vllm/bf16": TimeCoefficients(provenance="fitted", source="a test")})


def rounded(coefficients):
    """`coefficients` as plain values, numbers to the five digits that a file holds."""

    def plain(value):
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return plain(dataclasses.asdict(dataclasses.replace(coefficients, time=dict(coefficients.time))))


# Files


@given(files)
@settings(max_examples=60)
def test_what_is_written_is_read_again(coefficients):
    assert rounded(store.parse(store.dump(coefficients), "a file")) == rounded(coefficients)


def test_writing_the_same_again_changes_nothing(tmp_path):
    path = tmp_path / "A100.toml"
    store.write(SMALL, path)
    first = path.read_bytes()
    store.write(store.read(path), path)
    assert path.read_bytes() == first
    assert [one.name for one in tmp_path.iterdir()] == ["A100.toml"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e13])
def test_a_number_that_no_reader_takes_is_not_written_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "A100.toml"
    store.write(SMALL, path)
    before = path.read_bytes()
    spoilt = dataclasses.replace(SMALL, time={"gemm/vllm/bf16": TimeCoefficients(fixed_us=value)})
    with pytest.raises(InputError, match="fixed_us must be a number between 0 and 1e12"):
        store.write(spoilt, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_reader_never_sees_a_part_of_a_file(tmp_path):
    path = tmp_path / "A100.toml"
    large = GpuCoefficients("A100-SXM-80GB", {f"gemm/vllm/{i}": TimeCoefficients() for i in range(60)})
    store.write(SMALL, path)
    seen, done = [], threading.Event()

    def read():
        while not done.is_set():
            seen.append(len(store.read(path).time))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(15):
        store.write(large, path)
        store.write(SMALL, path)
    done.set()
    reader.join()
    assert seen
    assert set(seen) <= {1, 60}


def test_a_write_that_fails_leaves_no_litter(tmp_path):
    with pytest.raises(InputError, match="its folder does not exist"):
        store.write(SMALL, tmp_path / "gone" / "A100.toml")
    assert list(tmp_path.iterdir()) == []


HEAD = 'schema = 1\ngpu = "A100"\n'
TIME = HEAD + '[time."gemm/vllm/bf16"]\n'
POWER = HEAD + "[power]\nidle_w = 1\nclocked_w = 1\nactive_w = 1\nsfu_pj = 1\nshared_pj = 1\nl2_pj = 1\ndram_pj = 1\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has schema 'None'; this version reads schema 1"),
        ("schema = 2", "has schema '2'"),
        ("schema = true", "has schema 'True'"),
        ('schema = "1"', "has schema"),
        ("schema = 1", "gpu must be the name of a GPU, got 'None'"),
        ("schema = 1\ngpu = 5", "gpu must be the name of a GPU"),
        ("schema = ", "is no TOML"),
        ("\x00", "is no TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "is no TOML|schema"),
        (HEAD + "time = 3", "time must be a table, got '3'"),
        (HEAD + '[time]\n"gemm/vllm/bf16" = 3', "time: gemm/vllm/bf16 must be a table"),
        (HEAD + "[time.gemm]", "'gemm' must be named family/engine/group"),
        (TIME + "fixed_us = nan", "fixed_us must be a number between 0 and 1e12, got nan"),
        (TIME + "fixed_us = -1", "fixed_us must be a number between 0 and 1e12, got -1"),
        (TIME + "fixed_us = -1.5", "fixed_us must be a number"),
        (TIME + "fixed_us = inf", "fixed_us must be a number"),
        (TIME + 'fixed_us = "fast"', "fixed_us must be a number"),
        (TIME + "fixed_us = true", "fixed_us must be a number"),
        (TIME + "fixed_us = [1]", "fixed_us must be a number"),
        (TIME + "dram_efficiency = 0", "dram_efficiency must be a number between 1e-06"),
        (TIME + "sharpness = 0.5", "sharpness must be a number between 1 and"),
        (TIME + "fixed_ms = 1", "unknown entry of .*'fixed_ms': did you mean fixed_us"),
        (TIME + 'provenance = "guessed"', "unknown provenance in .* 'guessed'"),
        (TIME + "source = 3", "source must be a text"),
        (HEAD + "power = 5", "power must be a table"),
        (HEAD + "[power]\nidle_w = 1", "power lacks clocked_w, active_w, tensor_pj"),
        (POWER + "tensor_pj = 5\ncuda_pj = {}", "tensor_pj must be a table"),
        (POWER + "tensor_pj = { fp16 = nan }\ncuda_pj = {}", "tensor_pj: fp16 must be a number"),
        (POWER + 'tensor_pj = { fp16 = "x" }\ncuda_pj = {}', "tensor_pj: fp16 must be a number"),
        (HEAD + "host = 1", "host must be a table"),
        (HEAD + "[host]\neager_us = -9", "eager_us must be a number"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, text, told):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told) as refused:
        store.read(path)
    assert len(str(refused.value).splitlines()) == 1
    assert "mine.toml" in str(refused.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "binary.toml"):
        with pytest.raises(InputError, match="can't read coefficients from"):
            store.read(path)


@given(st.data())
@settings(max_examples=80)
def test_a_file_with_a_piece_torn_out_is_read_or_refused_as_input(data):
    text = store.dump(SMALL)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    torn = text[:start] + data.draw(texts) + text[end:]
    try:
        found = store.parse(torn, "a torn file")
    except InputError as error:
        refused = str(error)
    else:
        refused = "not refused"
        assert all(getattr(one, name) >= 0 for one in found.time.values() for name in TIME_PARAMETERS)
    assert len(refused.splitlines()) == 1


# What is shipped


def test_what_is_shipped_is_read_and_names_gpus_of_the_catalogue():
    for name in store.shipped():
        found = store.load(name)
        assert found is not None
        assert found.gpu == name
        assert name in gpu_names()
        assert {key.split("/")[0] for key in found.time} <= {*FAMILIES}
        for one in found.time.values():
            assert 0 < one.spread90 < 3
            assert one.rows > 0
            assert one.source


def test_a_gpu_that_was_never_calibrated_has_no_file():
    assert store.load("no-such-gpu") is None


# Likeness


@given(gpus, gpus)
def test_likeness_is_mutual_and_none_to_itself(a, b):
    assert likeness.distance(a, b) == pytest.approx(likeness.distance(b, a))
    assert likeness.distance(a, a) == 0
    assert likeness.distance(a, b) >= 0


def test_likeness_follows_the_generations():
    a100, a800, v100, h100, mi300 = map(
        load_gpu, ("A100-SXM-80GB", "A800-SXM-80GB", "V100-SXM-32GB", "H100-SXM-80GB", "MI300X")
    )
    far = [likeness.distance(a100, other) for other in (a800, v100, mi300)]
    assert far == sorted(far)
    assert likeness.distance(h100, load_gpu("H200-SXM-141GB")) < likeness.distance(h100, a100)
    assert likeness.distance(h100, a100) < likeness.distance(h100, v100) < likeness.distance(h100, mi300)


labels = st.lists(st.sampled_from(["bf16", "fp16", "fp8", "fp32", "gelu", "silu", "prefill"]), min_size=1, max_size=3)


@given(labels, labels)
def test_groups_are_alike_as_their_words_are(first, second):
    a, b = "/".join(first), "/".join(second)
    assert likeness.group_distance(a, b) == pytest.approx(likeness.group_distance(b, a))
    assert (likeness.group_distance(a, b) == 0) == (a == b)


def test_a_like_format_is_nearer_than_another_and_that_nearer_than_another_kernel():
    near = likeness.group_distance("gelu/fp16", "gelu/bf16")
    other = likeness.group_distance("gelu/fp32", "gelu/bf16")
    kernel = likeness.group_distance("silu/bf16", "gelu/bf16")
    assert 0 < near < other < kernel


# Transfer


@pytest.fixture
def calibrated(monkeypatch):
    """Puts files of one's own in the place of the shipped ones."""

    def put(*several):
        own = {one.gpu: one for one in several}
        monkeypatch.setattr(store, "known", lambda: tuple(sorted(own)))
        monkeypatch.setattr(store, "load", functools.cache(own.get))
        transfer.forget()

    yield put
    monkeypatch.undo()
    transfer.forget()


def fitted(mark, **changes):
    """Coefficients told apart by `mark`."""
    values = {"provenance": "fitted", "source": "a test", "rows": 9, "spread90": 0.1, "error": 0.05}
    return TimeCoefficients(fixed_us=mark, **{**values, **changes})


def energies(mark, **changes):
    values = {
        "idle_w": 40.0, "clocked_w": 20.0, "active_w": 100.0, "tensor_pj": {"fp16": 0.5}, "cuda_pj": {"fp32": 4.0},
        "sfu_pj": 8.0, "shared_pj": 2.0, "l2_pj": 12.0, "dram_pj": mark, "provenance": "fitted", "spread90": 0.1,
    }  # fmt: skip
    return PowerCoefficients(**{**values, **changes})


def gpu_file(name, time=(), power=None, host=None):
    return GpuCoefficients(name, MappingProxyType(dict(time)), power, host)


A100 = load_gpu("A100-SXM-80GB")
V100 = load_gpu("V100-SXM-32GB")
H100 = load_gpu("H100-SXM-80GB")


def test_its_own_coefficients_come_before_those_of_others(calibrated):
    calibrated(
        gpu_file("A100-SXM-80GB", time={"gemm/vllm/bf16": fitted(1), "gemm/trtllm/bf16": fitted(2)}),
        gpu_file("A100-SXM-40GB", time={"gemm/vllm/bf16": fitted(3)}),
        gpu_file("V100-SXM-32GB", time={"gemm/vllm/fp16": fitted(4)}),
    )
    own = transfer.time_coefficients(A100, "gemm", "vllm", "bf16")
    assert (own.fixed_us, own.provenance, own.spread90) == (1, "fitted", 0.1)
    assert transfer.time_coefficients(A100, "gemm", "trtllm", "bf16").fixed_us == 2
    # Without its own, the same engine on the chip's twin; without that, another engine before another generation.
    calibrated(
        gpu_file("A100-SXM-80GB", time={"gemm/trtllm/bf16": fitted(2)}),
        gpu_file("V100-SXM-32GB", time={"gemm/vllm/fp16": fitted(4)}),
    )
    other = transfer.time_coefficients(A100, "gemm", "vllm", "bf16")
    assert (other.fixed_us, other.provenance) == (pytest.approx(2, rel=0.15), "transferred")
    assert other.source == "from gemm/trtllm/bf16 of A100-SXM-80GB"
    calibrated(gpu_file("V100-SXM-32GB", time={"gemm/vllm/fp16": fitted(4)}))
    relative = transfer.time_coefficients(A100, "gemm", "vllm", "bf16")
    in_cycles = 4 * load_gpu("V100-SXM-32GB").clock_max_mhz / A100.clock_max_mhz
    assert (relative.fixed_us, relative.provenance) == (pytest.approx(in_cycles), "transferred")


def test_coefficients_of_relatives_are_less_certain_the_further_they_are(calibrated):
    spreads = []
    for name in ("A100-SXM-80GB", "A100-SXM-40GB", "H100-SXM-80GB", "MI300X"):
        calibrated(gpu_file(name, time={"gemm/vllm/bf16": fitted(1)}))
        spreads.append(transfer.time_coefficients(A100, "gemm", "vllm", "bf16").spread90)
    assert spreads == sorted(spreads)
    assert len(set(spreads)) == 4


def test_nothing_known_of_a_family_leaves_the_defaults(calibrated):
    calibrated(gpu_file("A100-SXM-80GB", time={"gemm/vllm/bf16": fitted(1)}))
    assert transfer.time_coefficients(A100, "copy", "vllm", "") == TimeCoefficients()
    calibrated()
    assert transfer.time_coefficients(A100, "gemm", "vllm", "bf16") == TimeCoefficients()
    assert transfer.power_coefficients(A100) == default_power(A100)
    assert transfer.host_coefficients(A100) == HostCoefficients()


def test_an_excluded_gpu_gives_nothing(calibrated):
    calibrated(
        gpu_file("A100-SXM-80GB", power=energies(1.0), time={"gemm/vllm/bf16": fitted(1)}),
        gpu_file("V100-SXM-32GB", power=energies(2.0), time={"gemm/vllm/bf16": fitted(4)}),
    )
    out = ("A100-SXM-80GB",)
    in_cycles = 4 * load_gpu("V100-SXM-32GB").clock_max_mhz / A100.clock_max_mhz
    assert transfer.time_coefficients(A100, "gemm", "vllm", "bf16", exclude=out).fixed_us == pytest.approx(in_cycles)
    assert transfer.power_coefficients(A100, exclude=out).source == transfer.COMMON_SOURCE
    both = (*out, "V100-SXM-32GB")
    assert transfer.time_coefficients(A100, "gemm", "vllm", "bf16", exclude=both) == TimeCoefficients()
    assert transfer.power_coefficients(A100, exclude=both) == default_power(A100)


def test_a_what_if_gpu_keeps_the_coefficients_of_what_it_was_made_from(calibrated):
    calibrated(
        gpu_file("A100-SXM-80GB", power=energies(1.0), time={"gemm/vllm/bf16": fitted(1)}),
        gpu_file("H100-SXM-80GB", power=energies(2.0), time={"gemm/vllm/bf16": fitted(4)}),
    )
    changed = load_gpu("A100-SXM-80GB", {"sm_count": 132})
    assert transfer.time_coefficients(changed, "gemm", "vllm", "bf16").fixed_us == 1
    assert transfer.power_coefficients(changed).provenance == "fitted"


def test_energies_are_rescaled_by_hand(calibrated):
    calibrated(gpu_file("A100-SXM-80GB", power=energies(60.0, learned_share=1.0)))
    found = transfer.power_coefficients(V100)
    node = V100.process_nm / A100.process_nm
    assert found.tensor_pj["fp16"] == pytest.approx(0.5 * node)
    assert found.l2_pj == pytest.approx(12.0 * node)
    assert found.dram_pj == pytest.approx(60.0 * 1.15)  # HBM2 over HBM2e
    assert found.provenance == "transferred"
    assert found.spread90 > 0.1
    smaller = V100.sm_count * V100.rate_clock_mhz / (A100.sm_count * A100.rate_clock_mhz)
    assert found.active_w <= 100.0 * node * smaller * (1 + 1e-9)
    assert transfer.power_coefficients(A100) == energies(60.0, learned_share=1.0)


@pytest.mark.parametrize("name", gpu_names())
def test_the_idle_power_of_a_gpu_is_counted_once(name, calibrated):
    # What is catalogued is the power of the waiting GPU at its highest clock: static power there, whatever the donor.
    gpu = load_gpu(name)
    for several in ((), (gpu_file("A100-PCIE-40GB", power=energies(60.0)),)):
        calibrated(*several)
        power = transfer.power_coefficients(gpu)
        if power.provenance == "fitted":
            continue
        assert power.idle_w + power.clocked_w == pytest.approx(gpu.idle_w)
        assert float(static_power_w(gpu.rate_clock_mhz, gpu, power)) == pytest.approx(gpu.idle_w)
        assert 0 < power.idle_w < gpu.power_limit_default_w


def test_hosts_are_those_of_gpus_of_one_age(calibrated):
    host = HostCoefficients(eager_us=5.0, provenance="fitted")
    calibrated(gpu_file("A100-SXM-80GB", host=host))
    assert transfer.host_coefficients(A100) == host
    twin = transfer.host_coefficients(load_gpu("A100-SXM-40GB"))
    assert (twin.eager_us, twin.provenance, twin.source) == (5.0, "transferred", "host of A100-SXM-80GB")
    assert transfer.host_coefficients(V100) == HostCoefficients()


def test_one_slow_machine_is_no_rule_for_its_age(calibrated):
    hosts = {"A100-SXM-80GB": HostCoefficients(eager_us=5.0), "A100-PCIE-40GB": HostCoefficients(eager_us=20.0)}
    calibrated(*(gpu_file(name, host=host) for name, host in hosts.items()))
    twin = transfer.host_coefficients(load_gpu("A100-SXM-40GB"))
    # the geometric mean of 5 and 20 us
    assert twin.eager_us == pytest.approx(10.0)
    assert set(twin.source.removeprefix("hosts of ").split(", ")) == set(hosts)


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_coefficients_for_every_family_and_says_where_from(name):
    gpu = load_gpu(name)
    shipped = store.load(name)
    own = shipped.time if shipped else {}
    for family in FAMILIES:
        for engine in ENGINES:
            found = transfer.time_coefficients(gpu, family, engine, "bf16")
            assert found.provenance in PROVENANCES
            assert (found.provenance == "fitted") == (f"{family}/{engine}/bf16" in own)
            assert all(0 < getattr(found, key) <= 1 for key in TIME_PARAMETERS if key.endswith("_efficiency"))
            assert found.sharpness >= 1
            assert found.spread90 > 0
    power = transfer.power_coefficients(gpu)
    assert (power.provenance == "fitted") == (shipped is not None and shipped.power is not None)
    assert power.idle_w > 0
    assert power.dram_pj > 0
    assert all(value >= 0 for value in power.tensor_pj.values())


@pytest.mark.parametrize("mode", ["eager", "compiled", "cuda_graph"])
def test_a_launch_costs_something_in_every_mode(mode):
    assert HostCoefficients().launch_us(mode) > 0
    assert HostCoefficients().launch_us("cuda_graph") < HostCoefficients().launch_us("eager")
