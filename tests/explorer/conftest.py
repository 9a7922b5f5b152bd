import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its simulated engines


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A toy with next to no warm start: what it answers doesn't matter here."""
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=64, val_rows=6, warm_steps=20))


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tokenizer():
    from trinity_compat.run.toy import make_tokenizer

    return make_tokenizer()
