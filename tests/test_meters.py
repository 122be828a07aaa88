"""Meters: readings of a simulated GPU with the failings of real ones, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
import types

import numpy as np
import pytest

from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.clocks import Settings
from joulecast.meters.device import DeniedError, LostError, probe
from joulecast.meters.external import ExternalMeter, energy_between, read_powers
from joulecast.meters.judge import judged, refusal, remark_on_duty
from joulecast.meters.nvml import NvmlDevice, cuda_device
from joulecast.meters.reading import Meter, MeterFacts, Reading
from joulecast.meters.recording import Recording, read_recording
from joulecast.meters.replay import Noise, ReplayMeter
from joulecast.meters.simulated import Failings, SimulatedDevice, SimulatedLoad
from joulecast.meters.window import WindowMeter, WindowSettings
from joulecast.meters.zeus import ZeusMeter


def meter(failings: Failings | None = None, *, power_w: float = 200.0, time_s: float = 1e-3, gap_s: float = 0.0,
          settings: WindowSettings | None = None, **device: float):  # fmt: skip
    gpu = SimulatedDevice(failings or Failings(), **device)
    return gpu, WindowMeter(gpu, settings or WindowSettings()), SimulatedLoad(gpu, "kernel", time_s, power_w, gap_s)


# Steady state of the simulation: P = load x (1 + leakage (T - 40)), T = ambient + heating P; load 200 W, 30 C,
# 0.15 K/W, 0.003/K: P = 200 (1 + 0.003 (0.15 P - 10)) => P (1 - 0.09) = 194 => 213.19 W.
STEADY_W = 200.0 * (1.0 - 0.003 * 10.0) / (1.0 - 200.0 * 0.003 * 0.15)


def test_the_steady_energy_of_a_launch_is_the_steady_power_times_its_time():
    _, metered, load = meter()
    reading = metered.read(load)
    assert isinstance(metered, Meter)
    assert metered.facts.method == "energy counter"
    assert reading.energy_j == pytest.approx(STEADY_W * 1e-3, rel=0.02)
    assert reading.duty == pytest.approx(1.0, abs=0.02)
    assert reading.launches >= 1500  # 1.5 s of launches of 1 ms
    assert reading.temperature_c == pytest.approx(30 + 0.15 * STEADY_W, abs=2)


def test_without_preheating_the_first_reading_would_be_too_low():
    gpu, _, load = meter()
    cold = SimulatedDevice()
    before = cold.energy_j()
    cold.run(SimulatedLoad(cold, "k", 1e-3, 200.0), 1500)
    assert (cold.energy_j() - before) / 1.5 < 0.97 * STEADY_W
    metered = WindowMeter(gpu)
    assert metered.read(load).power_w == pytest.approx(STEADY_W, rel=0.02)


def test_gaps_between_launches_lower_the_duty_and_the_period_holds_the_energy():
    # 1 ms of kernel and 0.25 ms of gap: duty 0.8; dynamic power is there for 0.8 of the period
    _, metered, load = meter(gap_s=0.25e-3, leakage=0.0)
    reading = metered.read(load)
    assert reading.duty == pytest.approx(0.8, abs=0.02)
    assert reading.period_s == pytest.approx(1.25e-3, rel=0.02)
    assert reading.power_w == pytest.approx(50 + 150 * 0.8, rel=0.02)
    assert "80%" in remark_on_duty(reading) or "79%" in remark_on_duty(reading)


@pytest.mark.parametrize("kind", ["none", "frozen", "impossible"])
def test_a_counter_that_can_not_be_used_gives_way_to_power(kind):
    _, metered, load = meter(Failings(counter=kind), leakage=0.0)
    reading = metered.read(load)
    assert metered.facts.method == "power integrated (instant field)"
    assert reading.power_w == pytest.approx(200.0, rel=0.02)
    if kind != "none":
        assert any("counter" in note for note in metered.facts.notes)


def test_a_trailing_average_is_read_over_windows_long_enough_for_it():
    _, metered, load = meter(Failings(counter="none", instant=False), leakage=0.0)
    reading = metered.read(load)
    assert metered.facts.method == "power integrated (average field)"
    assert reading.launches * reading.period_s >= 4.0
    assert reading.power_w == pytest.approx(200.0, rel=0.02)


def test_no_counter_and_no_power_is_not_available_and_never_zero():
    _, metered, load = meter(Failings(counter="none", power=False))
    with pytest.raises(InfeasibleError, match="can't be measured"):
        metered.read(load)


def test_a_counter_that_wraps_where_that_is_known_gives_the_right_energy():
    # 200 W for 1.5 s windows: a counter that wraps at 400 J does so in most windows
    settings = WindowSettings(wraps_at_j=400.0)
    _, metered, load = meter(Failings(wraps_at_j=400.0), settings=settings, leakage=0.0)
    readings = [metered.read(load) for _ in range(4)]
    assert [reading.power_w for reading in readings] == pytest.approx([200.0] * 4, rel=0.03)


def test_a_backward_step_is_a_reset_where_no_wrap_is_known_and_is_refused():
    _, metered, load = meter(Failings(counter="resets"), leakage=0.0)
    readings = [metered.read(load) for _ in range(12)]
    refused = [reading for reading in readings if reading.refused]
    assert refused
    assert all("backwards" in reading.refused for reading in refused)
    fine = [reading.power_w for reading in readings if not reading.refused]
    assert fine == pytest.approx([200.0] * len(fine), rel=0.03)


def test_throttling_is_told_and_the_limit_holds():
    _, metered, load = meter(power_w=350.0, cap_w=300.0, leakage=0.0)
    reading = metered.read(load)
    assert reading.throttled
    assert reading.power_w == pytest.approx(300.0, rel=0.02)
    # (300 - 50) / (350 - 50) of the dynamic power at (f / f0)^2.5
    assert reading.clock_mhz == pytest.approx(1800 * (250 / 300) ** (1 / 2.5), rel=0.01)
    assert reading.refused == ""


def test_a_device_that_is_lost_in_the_middle_says_so():
    _, metered, load = meter(Failings(lost_after_s=45.0))

    def read_on() -> None:
        for _ in range(100):
            metered.read(load)

    with pytest.raises(LostError, match="answers no more"):
        read_on()


def test_noise_averages_out_over_windows():
    _, metered, load = meter(Failings(noise=0.1), leakage=0.0)
    powers = [metered.read(load).power_w for _ in range(12)]
    # 15 independent pieces of 0.1 s in a window: 10 % / sqrt(15) = 2.6 % a reading
    assert 0.005 < np.std(powers) / np.mean(powers) < 0.06
    assert np.mean(powers) == pytest.approx(200.0, rel=0.03)


def test_probing_finds_how_often_the_counter_moves():
    gpu = SimulatedDevice(Failings(update_s=0.1))
    gpu.run_beside(SimulatedLoad(gpu, "k", 1e-3, 200.0))
    assert probe(gpu, seconds=3.0).update_s == pytest.approx(0.1, rel=0.2)


def test_the_impossible_reading_of_the_paper_is_refused_with_the_reason():
    # 6.909 mJ in 0.0118 ms are 585.5 W on a board of 450 W
    reading = judged(Reading(6.909e-3, 0.0118e-3), MeterFacts("any", "RTX 4090", "?", cap_w=450.0, idle_w=20.0))
    assert reading.refused.startswith("6.909 mJ in 0.0118 ms is 586 W, more than 1.05 x the limit of 450 W")
    assert "period was at least 0.0154 ms" in reading.refused


def test_less_than_idle_and_nothing_at_all_are_refused():
    assert "idle" in refusal(1.0, 1.0, 450.0, 50.0)
    assert refusal(0.0, 1.0, 450.0, 50.0)
    assert refusal(float("nan"), 1.0, None, None)
    assert refusal(100.0, 1.0, 450.0, 50.0) == ""
    assert refusal(470.0, 1.0, 450.0, 50.0) == ""  # within 1.05 x


def test_single_launches_of_a_recording_are_found_to_be_no_measurements(data_dir):
    recorded = read_recording(data_dir / "tuning" / "energy_a100_xgemm_fp32.parquet")
    assert recorded.launches_j is not None
    facts = MeterFacts("replay", "A100", "?", cap_w=250.0)
    found = [
        bool(judged(Reading(float(energy), float(time_s)), facts).refused)
        for launches, time_s in zip(recorded.launches_j, recorded.time_s, strict=True)
        for energy in launches[:4]
    ]
    # the recording's description: 52 % of single launches imply more than the cap of 250 W, 14 % more than 300 W
    assert 0.14 < np.mean(found) < 0.52


def recording(**more) -> Recording:
    base = {
        "name": "made", "configs": ({"a": 1}, {"a": 2}), "constants": {}, "time_s": np.array([1e-3, np.nan]),
        "time_cv": np.array([0.001, 0.0]), "energy_j": np.array([0.2, np.nan]), "reasons": ("", "CompilationFailed"),
    }  # fmt: skip
    return Recording(**(base | more))


def test_replayed_noise_has_the_spread_correlation_and_drift_that_were_asked_for():
    replay = ReplayMeter(recording(), Noise(0.023, autocorrelation=0.3), seed=1)
    energies = np.array([replay.read({"a": 1}).energy_j for _ in range(4000)]) / 0.2 - 1.0
    assert energies.std() == pytest.approx(0.023, rel=0.06)
    assert np.corrcoef(energies[1:], energies[:-1])[0, 1] == pytest.approx(0.3, abs=0.06)
    drifting = ReplayMeter(recording(), Noise(0.0, drift=0.02, warming=10.0))
    readings = [drifting.read({"a": 1}).energy_j for _ in range(100)]
    assert readings[0] == pytest.approx(0.2)
    assert readings[-1] == pytest.approx(0.2 * 1.02, rel=1e-3)


def test_replaying_repeats_gives_the_series_whatever_is_asked_for():
    series = (np.array([1.0, 2.0, 3.0]), np.full(3, 1e-2), np.array([40.0, 41.0, np.nan]))
    replay = ReplayMeter(recording(series=series), Noise(None), seed=0)
    start = [replay.read({"a": 1}).energy_j for _ in range(6)]
    assert start[:3] == start[3:]
    assert sorted(start[:3]) == [1.0, 2.0, 3.0]


def test_replaying_what_failed_is_an_error_with_the_reason():
    replay = ReplayMeter(recording())
    with pytest.raises(InfeasibleError, match="CompilationFailed"):
        replay.read({"a": 2})
    with pytest.raises(InputError, match="no configuration"):
        replay.read({"a": 3})


def test_an_external_meter_integrates_its_file(tmp_path):
    path = tmp_path / "meter.csv"
    times = np.arange(0.0, 10.0, 0.1)
    path.write_text("time_s,power_W\n" + "".join(f"{t},{100 + 10 * t}\n" for t in times) + "10.0,2")
    read = read_powers(path)
    assert len(read[0]) == 100  # the last line is still being written
    # integral of 100 + 10 t from 2.05 to 6.05
    assert energy_between(*read, 2.05, 6.05) == pytest.approx(400 + 5 * (6.05**2 - 2.05**2))
    with pytest.raises(InfeasibleError, match="cover"):
        energy_between(*read, 5.0, 12.0)


class Clocked:
    """A load that takes a tenth of a second a launch by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.name = 1.0, "clocked"

    def run(self, launches: int) -> float:
        self.now += 0.1 * launches
        return 0.1 * launches

    def launches_of(self, launches: int) -> int:
        return launches


def test_an_external_meter_refuses_a_window_that_its_file_does_not_cover(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text("time_s,power_W\n" + "".join(f"{t / 10},150\n" for t in range(200)))
    load = Clocked()
    metered = ExternalMeter(path, clock=lambda: load.now, wait_s=0.0)
    assert metered.read(load).energy_j == pytest.approx(15.0)
    load.now = 19.0
    assert "cover" in metered.read(load).refused
    load.now = 50.0
    with pytest.raises(LostError, match=r"meter\.csv grows no more"):
        metered.read(load)


@pytest.mark.parametrize(
    ("start", "scale", "watts", "said"),
    [
        (1.7e9, 1e3, 200.0, "looks like milliseconds"),
        (1.7e9, 1e6, 200.0, "looks like microseconds"),
        (0.0, 1.0, 200.0, "s before now: it is in seconds since 1970"),
        (1.7e9 - 7200.0, 1.0, 200.0, r"7,\d{3} s before now"),
        (1.7e9, 1.0, 200e3, r"was 2e\+05 of late, .* \(mW\?\)"),
        (1.7e9, 1.0, 0.2, r"was 0.2 of late, .* \(kW\?\)"),
    ],
)
def test_a_meters_file_in_another_unit_is_refused_before_the_first_window(start, scale, watts, said, tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text("time_s,power_W\n" + "".join(f"{(start + t) * scale},{watts}\n" for t in range(30)))
    with pytest.raises(InputError, match=said):
        ExternalMeter(path, usual_w=(5.0, 4000.0), clock=lambda: 1.7e9 + 30.0).look()


def test_a_window_holds_enough_readings_of_a_slow_meter(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text("time_s,power_W\n" + "".join(f"{t},150\n" for t in range(40)))
    load = Clocked()
    metered = ExternalMeter(path, clock=lambda: load.now, wait_s=0.0)
    assert "only" in metered.read(load).refused or "make it longer" in metered.read(load).refused
    load.now = 1.0
    metered.look()
    reading = metered.read(load)
    assert reading.refused == ""
    assert reading.energy_j == pytest.approx(15.0)
    assert reading.launches * 0.1 == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\n1,2\n", "columns"), ("time_s,power_W\n1,x\n", "numbers"), ("time_s,power_W\n2,1\n1,1\n", "rise")],
)
def test_a_bad_file_of_an_external_meter_is_refused_in_one_line(tmp_path, text, said):
    path = tmp_path / "meter.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_powers(path)


@pytest.mark.parametrize("instant", [True, False])
def test_idle_power_is_that_of_a_gpu_that_has_come_to_rest(instant):
    gpu = SimulatedDevice(Failings(instant=instant))
    SimulatedLoad(gpu, "before", 1e-3, 250.0).run(5000)
    assert (gpu.instant_power_w() or gpu.average_power_w()) > 200.0
    meter = WindowMeter(gpu)
    meter.prepare(SimulatedLoad(gpu, "kernel", 1e-3, 250.0))
    assert meter.facts.idle_w == pytest.approx(50.0, rel=0.02)


def test_zeus_is_read_by_its_windows():
    class Monitor:
        def begin_window(self, _name): ...

        def end_window(self, _name):
            return type("Measurement", (), {"gpu_energy": {0: 30.0}, "time": 0.2})

    class Quick(Clocked):
        def run(self, launches: int) -> float:
            assert launches >= 1
            time.sleep(1e-4)
            return 1e-4

    metered = ZeusMeter(monitor=Monitor(), window_s=1e-3, cap_w=300.0)
    reading = metered.read(Quick())
    assert reading.energy_j * reading.launches == pytest.approx(30.0)
    assert reading.power_w == pytest.approx(150.0)


def test_clocks_are_put_back_after_an_exception(tmp_path):
    gpu = SimulatedDevice()
    settings = Settings(gpu, tmp_path / "journal.json")
    settings.check((1500.0,), (200.0,))

    def stop_in_the_middle() -> None:
        with settings.held():
            settings.set(1500.0, 200.0)
            assert gpu.clock_mhz() == 1500.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_in_the_middle()
    assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 300.0)
    assert not (tmp_path / "journal.json").exists()


def test_what_a_killed_process_left_is_put_back_by_the_next(tmp_path):
    gpu = SimulatedDevice()
    Settings(gpu, tmp_path / "journal.json").set(1500.0, 200.0)  # and then the process is killed
    assert json.loads((tmp_path / "journal.json").read_text())["limit_w"] == 300.0
    with Settings(gpu, tmp_path / "journal.json").held():
        assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 300.0)


def test_a_missing_right_is_named_before_anything_is_measured(tmp_path):
    gpu = SimulatedDevice(Failings(may_set=False))
    with pytest.raises(DeniedError, match="no right to lock the core clock of simulated GPU"):
        Settings(gpu, tmp_path / "journal.json").check((1500.0,))
    assert not (tmp_path / "journal.json").exists()
    with pytest.raises(InputError, match="nearest is 1500"):
        Settings(SimulatedDevice(), tmp_path / "journal.json").check((1501.0,))


def test_a_signal_puts_the_clocks_back(tmp_path):
    script = tmp_path / "held.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from joulecast.meters.clocks import Settings
        from joulecast.meters.simulated import SimulatedDevice
        class Gpu(SimulatedDevice):
            def unlock_clock(self):
                print("unlocked", flush=True)
                super().unlock_clock()
        settings = Settings(Gpu(), {str(tmp_path / "journal.json")!r})
        with settings.held():
            settings.set(1500.0)
            print("set", flush=True)
            time.sleep(30)
    """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "set\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "unlocked\n"
        assert process.wait() == -signal.SIGTERM
    assert not (tmp_path / "journal.json").exists()


class Library:
    """As much of ``pynvml`` as it takes to find a GPU."""

    class NVMLError(Exception):
        """Raised for a GPU that is not there."""

    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_UNINITIALIZED, NVML_ERROR_UNKNOWN = 15, 1, 999
    UUIDS = ("GPU-aaaa", "GPU-bbbb")

    def nvmlInit(self):  # noqa: N802 - the library's own name
        """Nothing to start."""

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        """By its number."""
        return self.UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        """By its UUID."""
        if uuid not in self.UUIDS:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetHandleByPciBusId(self, address):  # noqa: N802
        """By its address."""
        return {"00000000:3B:00.0": "GPU-aaaa", "00000000:AF:00.0": "GPU-bbbb"}[address]

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        """Of a handle."""
        return handle


def _torch(**told):
    properties = types.SimpleNamespace(**told)
    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda _: properties)
    )


def test_the_metered_gpu_is_the_one_that_cuda_uses(monkeypatch):
    # CUDA_VISIBLE_DEVICES=1: what CUDA calls GPU 0 is NVML's second
    monkeypatch.setitem(sys.modules, "pynvml", Library())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert NvmlDevice(0).identity == "GPU-aaaa"
    assert cuda_device(_torch(uuid="bbbb")).identity == "GPU-bbbb"
    assert cuda_device(_torch(uuid=None, pci_bus_id=0xAF, pci_device_id=0, pci_domain_id=0)).identity == "GPU-bbbb"
    with pytest.raises(InputError, match="unset CUDA_VISIBLE_DEVICES"):
        cuda_device(_torch())
    with pytest.raises(InputError, match="no NVIDIA GPU GPU-cccc to measure here: Not Found"):
        cuda_device(_torch(uuid="cccc"))
