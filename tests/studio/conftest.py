"""A studio over two finished jobs, asked by starlette's TestClient."""

import pytest
from studio_jobs import client_of, make_job


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Read by many tests, changed by none."""
    root = tmp_path_factory.mktemp("jobs")
    make_job(root / "toy" / "grpo")
    make_job(root / "plain", evil=False, steps=4)
    return root


@pytest.fixture(scope="session")
def studio(folder):
    return client_of(folder)
