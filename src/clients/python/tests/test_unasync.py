"""The client for threads is what ``unasync.py`` writes from the client for asyncio."""

import pathlib
import runpy

import pytest

SCRIPT = runpy.run_path(str(pathlib.Path(__file__).parent.parent / "unasync.py"))


@pytest.mark.parametrize("name", SCRIPT["NAMES"])
def test_the_client_for_threads_is_not_stale(name):
    path = SCRIPT["path_of"](name)
    is_stale = path.read_text(encoding="utf-8") != SCRIPT["generated"](name)
    assert not is_stale, f"{path} is stale: run python unasync.py in src/clients/python, and commit what it writes"
