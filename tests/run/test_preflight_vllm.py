"""A vLLM that loses tokens on GPUs is refused before a run starts."""

import sys

import pytest

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.checks import doctor, preflight

LOSES = "self.num_output_placeholders = 0\nself.discard_latest_async_tokens = False\n"  # 0.17 to 0.21
COUNTS = "self.num_output_placeholders = 0\nself.async_tokens_to_discard = 0\n"  # 0.22 to 0.24
SAYS = r"vLLM 0\.20\.2 loses a token of each running answer .* veRL refuses vLLM below 0\.18"


@pytest.fixture
def install(tmp_path, monkeypatch):
    def put(request):
        (tmp_path / "vllm" / "v1").mkdir(parents=True)
        (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('imported')\n")
        (tmp_path / "vllm" / "v1" / "request.py").write_text(request)
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        found = optional_packages.version
        monkeypatch.setattr(
            optional_packages, "version", lambda name: "0.20.2+cu129" if name == "vllm" else found(name)
        )

    return put


def spec(**fields):
    return RunSpec("job", "", {}, **{"updates_per_step": 1, "total_steps": 2, "sync": SyncSpec(), **fields})


def test_it_is_refused_with_both_reasons_and_what_to_install(install):
    install(LOSES)
    with pytest.raises(UserError, match=SAYS) as caught:
        preflight.check_vllm(spec(device="cuda"))
    assert caught.value.hint == optional_packages.install_command("gpu")
    check = doctor._vllm("cuda")
    assert (check.state, check.fix) == ("problem", caught.value.hint)


def test_one_that_counts_what_is_in_flight_is_taken(install):
    install(COUNTS)
    preflight.check_vllm(spec(device="cuda"))
    assert doctor._vllm("cuda").state == "ok"


@pytest.mark.parametrize(
    "without_its_engines",
    [{"device": "cpu"}, {"device": "cuda", "mode": "train"}],
)
def test_a_run_without_engines_on_gpus_takes_it(install, without_its_engines):
    install(LOSES)
    preflight.check_vllm(spec(**without_its_engines))
