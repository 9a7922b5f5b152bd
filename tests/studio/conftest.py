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
    client = client_of(folder)
    yield client
    client.app.state.studio.text_server.close()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """The index of runs and the saved texts are not the user's; a request has time to read them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinity_compat.studio.runs_page._READING_S", 1e9)
        cache = tmp_path_factory.mktemp("cache")
        patch.setattr("trinity_compat.studio.run_index.cache_folder", lambda: cache)
        patch.setattr("trinity_compat.studio.launch_files.data_folder", lambda: cache)
        patch.setattr("trinity_compat.studio.start_drafts.cache_folder", lambda: cache)
        yield


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    """Serve a studio without jobs to a browser, and yield its address."""
    from studio_browser import serving

    with serving(tmp_path_factory.mktemp("jobs")) as listener:
        yield listener


@pytest.fixture(scope="module")
def browser():
    """Chromium for a file's tests."""
    from browser import launched  # here: it needs playwright

    with launched() as made:
        yield made


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The files of a new form, at home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data" / "gsm8k").mkdir(parents=True)
    for name in ("train", "test"):
        (tmp_path / "data" / "gsm8k" / f"{name}.parquet").touch()
