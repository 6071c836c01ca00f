"""What holds for every test: no example of a property is too slow, because machines are noisy and kernels load when first used; servers
note their addresses in a directory of the run, where the command line of the same run finds them, and not in the user's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from penstock.config.known_servers import HOME_VARIABLE

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


@pytest.fixture(scope="session", autouse=True)
def penstock_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    os.environ[HOME_VARIABLE] = str(home)
    yield home
    del os.environ[HOME_VARIABLE]
