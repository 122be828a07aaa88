"""What a GPU draws while it waits for another one: what pipelines tell of each GPU, and of a GPU by the others.

python benchmarks/waiting_power.py --data DIR

What spinning adds to static power is divided by several measures of a GPU; the one by which GPUs are most alike ships,
as `joulecast.physics.power.SPIN_W_PER_SM`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from joulecast.coefficients.transfer import power_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.power import SPIN_W_PER_SM, core_scale, spinning_power_w, static_power_w
from joulecast.validation.training_pipelines import at_highest, ranks_by_gpu, waiting_power_w


def main() -> None:
    """Print what each GPU draws, and how far off each measure is on a GPU left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds training/")
    folder = parser.parse_args().data / "training"
    waiting, static, measures = {}, {}, {}
    for gpu, models in ranks_by_gpu(folder).items():
        one = load_gpu(gpu)
        power, top = power_coefficients(one), one.clock_max_mhz
        waiting[gpu] = waiting_power_w({name: at_highest(ranks) for name, ranks in models.items()})
        static[gpu] = float(static_power_w(top, one, power))
        drive = float(core_scale(top, one, power)) * top / one.rate_clock_mhz
        ships = float(spinning_power_w(top, one, power))
        print(f"{gpu:16} waits at {waiting[gpu]:5.0f} W, {static[gpu]:4.0f} W of it static; {ships:4.0f} W as it ships")
        measures[gpu] = {
            "SM": one.sm_count * drive,
            "watt between idle and limit": (one.power_limit_default_w - one.idle_w) * drive,
            "watt that the clock adds": power.clocked_w * drive,
            "watt of SMs that hold blocks": power.active_w * drive,
            "GPU": drive,
        }
    names = list(next(iter(measures.values())))
    print(
        f"\nships: {SPIN_W_PER_SM} W an SM\n\n{'added for each':30}"
        + "".join(f"{gpu:>18}" for gpu in waiting)
        + "   left out"
    )
    for name in names:
        each = {gpu: (waiting[gpu] - static[gpu]) / measures[gpu][name] for gpu in waiting}
        off = []
        for gpu in waiting:
            others = [np.log(value) for other, value in each.items() if other != gpu]
            off.append((static[gpu] + float(np.exp(np.mean(others))) * measures[gpu][name]) / waiting[gpu] - 1)
        print(f"{name:30}" + "".join(f"{value:16.2f} W" for value in each.values()) + "   "
              + ", ".join(f"{one:+.0%}" for one in off))  # fmt: skip
    print(f"{'nothing':30}" + f"{'':18}" * len(waiting) + "   "
          + ", ".join(f"{static[gpu] / waiting[gpu] - 1:+.0%}" for gpu in waiting))  # fmt: skip


if __name__ == "__main__":
    main()
