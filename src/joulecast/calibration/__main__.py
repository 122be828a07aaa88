"""``python -m joulecast.calibration --data DIR``: rebuild the shipped coefficients."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from joulecast.calibration.build import STAGES, build


def main() -> None:
    """Read the command line and rebuild."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.calibration", description=__doc__)
    shipped = Path(str(resources.files("joulecast.coefficients") / "data"))
    parser.add_argument("--data", type=Path, required=True, help="folder of measured tables")
    parser.add_argument("--out", type=Path, default=shipped, help="folder of coefficient files (the shipped ones)")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this stage; repeatable")
    asked = parser.parse_args()
    build(asked.data, asked.out, tuple(asked.stage or STAGES), tell=lambda line: print(line, flush=True))


main()
