"""``python -m joulecast``: the command line."""

from __future__ import annotations

import sys

from joulecast.cli import main

sys.exit(main())
