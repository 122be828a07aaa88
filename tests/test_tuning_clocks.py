"""The clock as a tunable, and a whole search on a simulated GPU that warms, scatters and throttles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.clocks import Settings, _started, default_journal, left_behind
from joulecast.meters.device import DeniedError
from joulecast.meters.simulated import Failings, SimulatedDevice, SimulatedLoad
from joulecast.meters.window import WindowMeter, WindowSettings
from joulecast.tuning.clocked import CLOCK, LIMIT, ClockedEvaluator, with_clocks
from joulecast.tuning.evaluator import Check, Evaluator
from joulecast.tuning.space import Space
from joulecast.tuning.tune import search

#: Time and power of each kernel at the top clock; number 2 is 2 % slower and draws 12 % less.
KERNELS = {0: (1.00e-3, 220.0), 1: (1.01e-3, 222.0), 2: (1.02e-3, 193.0), 3: (1.50e-3, 150.0)}


class Simulated:
    """Kernels on a simulated GPU, metered as a real one would be."""

    def __init__(self, gpu: SimulatedDevice) -> None:
        self.gpu = gpu
        self.meter = WindowMeter(gpu, WindowSettings(window_s=1.0))
        self.loads = {number: SimulatedLoad(gpu, f"kernel {number}", *of) for number, of in KERNELS.items()}
        self.prepared = False
        self.checked = 0

    @property
    def question(self):
        return {"kernel": "simulated"}

    @property
    def facts(self):
        return self.meter.facts

    def check(self, configs):
        self.checked += len(configs)
        return [Check(True) for _ in configs]

    def latency(self, config, count):
        return np.full(count, self.loads[config["kernel"]].run(1000) / 1000)

    def energy(self, config, count):
        load = self.loads[config["kernel"]]
        if not self.prepared:
            self.meter.prepare(load)
            self.prepared = True
        return [self.meter.read(load) for _ in range(count)]

    def features(self, _configs):
        return None

    def prior(self, _configs):
        return None


SPACE = Space.of({"kernel": list(KERNELS)})


def test_a_search_on_a_simulated_gpu_finds_the_kernel_that_draws_less():
    gpu = SimulatedDevice(Failings(noise=0.05), seed=3)
    evaluator = Simulated(gpu)
    assert isinstance(evaluator, Evaluator)
    found = search(evaluator, SPACE, slack=0.05)
    assert found.chosen == {"kernel": 2}
    assert found.baseline == {"kernel": 0}
    # (1.02 x 193) / (1.00 x 220) is 10.5 % less; the cooler chip leaks less too
    assert found.saving.lower - 0.01 < 1 - 1.02 * 193 / 220 < found.saving.upper + 0.01
    assert found.temperature_c[1] > 45
    assert found.clock_mhz == (1800.0, 1800.0)
    assert found.duty > 0.95
    assert found.facts.method == "energy counter"


def test_what_is_answered_from_the_log_was_measured_by_what_measured_it(tmp_path):
    first = search(Simulated(SimulatedDevice()), SPACE, slack=0.05, log=tmp_path / "log.db")
    again = search(Simulated(SimulatedDevice()), SPACE, slack=0.05, log=tmp_path / "log.db")
    assert first.facts.method == "energy counter"
    assert again.answered_by_log == again.energy_readings + 2 * again.latency_evaluations
    assert (again.facts, again.saving, again.points) == (first.facts, first.saving, first.points)


def test_the_clock_is_a_tunable_and_is_put_back(tmp_path):
    gpu = SimulatedDevice()
    settings = Settings(gpu, tmp_path / "journal.json")
    clocks = (1200.0, 1500.0, 1800.0)
    plain = Simulated(gpu)
    evaluator = ClockedEvaluator(plain, settings, clocks)
    assert isinstance(evaluator, Evaluator)
    with settings.held():
        found = search(evaluator, with_clocks(SPACE, clocks), slack=0.25)
    # dynamic power falls with the 2.5th power of the clock: 50 + 143 x (1500 / 1800)^2.5 = 140.7 W for 1.2 x 1.02 the
    # time, against 220 W: 21.7 % less while both are equally warm
    assert found.chosen == {"kernel": 2, CLOCK: 1500.0}
    assert found.saving.estimate == pytest.approx(0.217, abs=0.01)
    assert gpu.clock_mhz() == 1800.0
    assert not (tmp_path / "journal.json").exists()
    assert plain.checked <= 4 * len(clocks)


def test_without_the_right_nothing_is_measured(tmp_path):
    gpu = SimulatedDevice(Failings(may_set=False))
    with pytest.raises(DeniedError, match="no right to lock the core clock"):
        ClockedEvaluator(Simulated(gpu), Settings(gpu, tmp_path / "journal.json"), (1500.0,))
    assert gpu.now_s() == 0.0


def test_a_listed_space_takes_clocks_too():
    listed = Space.of_list([{"a": 1, "b": 1}, {"a": 2, "b": 3}])
    both = with_clocks(listed, [900, 1200])
    assert len(list(both.enumerated())) == 4
    assert all(both.holds(code) for code in both.enumerated())


def test_the_power_limit_is_a_tunable_too_and_is_put_back(tmp_path):
    gpu = SimulatedDevice()
    settings = Settings(gpu, tmp_path / "journal.json")
    limits = (150.0, 200.0, 300.0)
    evaluator = ClockedEvaluator(Simulated(gpu), settings, limits_w=limits)
    with settings.held():
        found = search(evaluator, with_clocks(SPACE, limits_w=limits), slack=0.25)
    # at 150 W kernel 2 runs at (100 / 143)^(1 / 2.5) = 0.87 of its clock while it is no warmer than 40 degrees: 17 %
    # slower than the fastest, for 150 x 1.02 / 0.87 = 176 units of energy against 220
    assert found.chosen == {"kernel": 2, LIMIT: 150}
    assert found.saving.estimate == pytest.approx(1 - 176 / 220, abs=0.02)
    assert found.question["power_limit_w"] == "by configuration"
    assert gpu.limit_w() == 300.0
    assert "throttled" not in found.verdict
    assert any("held down by a limit" in note for note in found.notes)


def test_one_clock_holds_for_all_and_is_no_tunable(tmp_path):
    gpu = SimulatedDevice()
    settings = Settings(gpu, tmp_path / "journal.json")
    evaluator = ClockedEvaluator(Simulated(gpu), settings, (1500.0,))
    with settings.held():
        found = search(evaluator, SPACE, slack=0.05)
    assert found.chosen == {"kernel": 2}
    assert found.clock_mhz == (1500.0, 1500.0)
    assert found.question["clock_mhz"] == 1500.0


def test_what_was_not_set_is_not_touched(tmp_path):
    gpu = SimulatedDevice()
    touched = []
    gpu.unlock_clock = lambda: touched.append("clock")
    settings = Settings(gpu, tmp_path / "journal.json")
    with settings.held():
        settings.set(limit_w=200.0)
    assert touched == []
    assert gpu.limit_w() == 300.0


def test_a_journal_that_can_not_be_read_means_that_all_may_have_been_set(tmp_path):
    gpu = SimulatedDevice()
    gpu.lock_clock(1200.0)
    (tmp_path / "journal.json").write_text('{"limit_w": 3')
    Settings(gpu, tmp_path / "journal.json").restore()
    assert gpu.clock_mhz() == 1800.0
    assert not (tmp_path / "journal.json").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"limit_w": "abc", "limit": true}', '{"limit_w": 1e9, "limit": true}', '{"limit_w": [1]}',
     '{"limit_w": NaN, "process": "x"}', '{"limit_w": true}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_journal_sets_no_limit_that_the_device_can_not_have(tmp_path, text):
    gpu = SimulatedDevice()
    gpu.lock_clock(1200.0)
    gpu.set_limit(150.0)
    (tmp_path / "journal.json").write_text(text)
    Settings(gpu, tmp_path / "journal.json").restore()
    assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 150.0)
    assert not (tmp_path / "journal.json").exists()


def test_a_journal_that_is_taken_away_meanwhile_changes_nothing(tmp_path):
    gpu = SimulatedDevice()
    with Settings(gpu, tmp_path / "journal.json").held() as settings:
        settings.set(1200.0, 150.0)
        (tmp_path / "journal.json").unlink()
        settings.set(1500.0)
        (tmp_path / "journal.json").unlink(missing_ok=True)
    assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 300.0)


def test_two_processes_never_hold_the_clocks_of_one_device(tmp_path):
    script = tmp_path / "holds.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, time
        from joulecast.meters.clocks import Settings
        from joulecast.meters.simulated import SimulatedDevice
        with Settings(SimulatedDevice(), {str(tmp_path / "journal.json")!r}).held():
            if os.fork() == 0:
                time.sleep(60)  # what compiles may live longer, and holds nothing
                os._exit(0)
            print("held", flush=True)
            time.sleep(60)
    """)
    )
    gpu = SimulatedDevice()
    settings = Settings(gpu, tmp_path / "journal.json")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"held\n"  # and nothing is set yet: it compiles
        said = f"process {process.pid} sets the clocks of simulated GPU and is still running"
        for act in (settings.recover, settings.held().__enter__):
            with pytest.raises(InputError, match=said):
                act()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with settings.held():
            settings.set(1200.0)
        assert gpu.clock_mhz() == 1800.0
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_signal_that_does_not_end_the_search_leaves_its_clocks(tmp_path, handler):
    gpu = SimulatedDevice()
    before = signal.signal(signal.SIGHUP, handler)  # nohup, or a handler of the caller's
    try:
        with Settings(gpu, tmp_path / "journal.json").held() as settings:
            settings.set(1200.0)
            os.kill(os.getpid(), signal.SIGHUP)
            assert gpu.clock_mhz() == 1200.0
        assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)
    assert gpu.clock_mhz() == 1800.0


def test_a_second_interrupt_waits_until_all_is_put_back(tmp_path):
    class Interrupted(SimulatedDevice):
        def unlock_clock(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)  # the thread beside takes it meanwhile
            super().unlock_clock()

    gpu = Interrupted()

    def interrupted() -> None:
        with Settings(gpu, tmp_path / "journal.json").held() as settings:
            settings.set(1200.0, 150.0)
            os.kill(os.getpid(), signal.SIGINT)

    beside = threading.Event()
    threading.Thread(target=beside.wait, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    beside.set()
    assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 300.0)
    assert not (tmp_path / "journal.json").exists()


def test_an_error_tells_of_clocks_that_are_not_put_back(tmp_path):
    gpu = SimulatedDevice()

    def failing() -> None:
        with Settings(gpu, tmp_path / "journal.json").held() as settings:
            settings.set(1200.0)
            gpu.failings = Failings(may_set=False)
            raise InfeasibleError("none runs")

    with pytest.raises(InfeasibleError, match=r"none runs; .*not put back: no right to unlock"):
        failing()
    assert (tmp_path / "journal.json").exists()


def test_clocks_that_a_running_process_holds_are_left_to_it(tmp_path):
    gpu = SimulatedDevice()
    gpu.lock_clock(1200.0)
    parent = os.getppid()
    held = {"process": parent, "started": _started(parent), "clock": True, "limit": False, "limit_w": 300.0}
    (tmp_path / "journal.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match=f"process {parent} has set the clocks of simulated GPU"):
        Settings(gpu, tmp_path / "journal.json").restore()
    assert gpu.clock_mhz() == 1200.0
    (tmp_path / "journal.json").write_text(json.dumps({**held, "started": "1"}))  # its number was given anew
    Settings(gpu, tmp_path / "journal.json").restore()
    assert gpu.clock_mhz() == 1800.0


def test_after_kill_nine_in_the_middle_of_a_search_the_next_one_puts_everything_back(tmp_path):
    script = tmp_path / "search.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from joulecast.meters.clocks import Settings
        from joulecast.meters.simulated import SimulatedDevice
        gpu = SimulatedDevice()
        settings = Settings(gpu, {str(tmp_path / "journal.json")!r})
        with settings.held():
            settings.set(1200.0, 150.0)
            print("set", flush=True)
            time.sleep(30)
    """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "set\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    gpu = SimulatedDevice()
    gpu.lock_clock(1200.0)  # as the driver still has it
    gpu.set_limit(150.0)
    settings = Settings(gpu, tmp_path / "journal.json")
    with settings.held():
        assert (gpu.clock_mhz(), gpu.limit_w()) == (1800.0, 300.0)
        settings.set(limit_w=200.0)  # and what is put back later is what was there at first
    assert gpu.limit_w() == 300.0


def test_the_journal_is_the_devices_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gpu = SimulatedDevice()
    assert default_journal(gpu) == tmp_path / "joulecast" / "clocks-simulated-gpu.json"
    gpu.identity = "GPU-12ab/7"
    assert default_journal(gpu).name == "clocks-gpu-12ab-7.json"


def test_doctor_tells_of_clocks_that_are_set(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert left_behind() == []
    gpu = SimulatedDevice()
    settings = Settings(gpu)
    settings.set(1200.0)
    path = default_journal(gpu)
    assert left_behind() == [{"device": "simulated GPU", "journal": str(path), "process": os.getpid()}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "started": "1"}))
    assert main(["doctor"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "clocks set of simulated GPU, by a search that was killed: the next one that measures puts them back" in told
    settings.restore()
    assert left_behind() == []
