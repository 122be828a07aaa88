"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine stalls now and then: how long one example takes says nothing.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of measured tables: ``$JOULECAST_DATA``, or ``../shared/data`` beside the repository."""
    named = os.environ.get("JOULECAST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no measured tables: {'$JOULECAST_DATA' if named else '../shared/data'} is not a folder")
    return folder
