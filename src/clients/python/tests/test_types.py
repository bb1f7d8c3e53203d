"""The annotations of the package hold. This runs mypy, if it is there."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_types_are_strict(tmp_path):
    package = pathlib.Path(__file__).parent.parent
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", package / "pyproject.toml", "--cache-dir", tmp_path, "spindle"],
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
