.NOTPARALLEL:
.PHONY: install install-system install-tests demo screenshots check test-setup test test-light test-heavy test-whole test-changed proof starts-sample release release-check docs web-parser nightly bench parity chaos starts weekly mutate clean docs-version web
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Two processes that compute side by side take turns at a core: a thread that waits must not spin on it.
export OMP_WAIT_POLICY := PASSIVE

install: .venv/.installed

.venv/.installed: requirements/hashes/cpu.txt requirements/hashes/dev.txt requirements/cpu.txt pyproject.toml scripts/ci/make_venv.sh
	scripts/ci/make_venv.sh .venv
	@touch $@

# The Debian packages that tests need (requirements/debian.txt): as root, else a line that says what to run.
install-system:
	scripts/ci/install_system.sh

# What only tests need: the real trinity-rft, the GPU release of vLLM, torchvision, wheels, mkdocs. Made anew when a
# list changes.
install-tests: install .venv-docs/requirements.txt
	scripts/ci/make_upstream_venv.sh 0.4.1 >/dev/null
	scripts/ci/unpack_vllm.sh >/dev/null
	scripts/ci/unpack_verl.sh >/dev/null
	scripts/ci/unpack_vision.sh >/dev/null
	scripts/ci/make_wheels.sh

# The main job on a CPU: a tiny model, a small dataset, a veRL script run unchanged and decoupled.
demo: install
	trinity-compat toy toy
	@echo "to watch it in a browser: .venv/bin/trinity-compat studio, in another terminal, and open the address it prints"
	TOY_DIR=$(CURDIR)/toy trinity-compat run examples/verl_scripts/run_toy_grpo.sh

# The studio's pages as pictures: all of them, made by its browser tests, to look at; the docs' ones off the demo's job,
# and what commands print.
screenshots: install
	mkdir -p .scratch/shots
	STUDIO_SCREENSHOTS=$(CURDIR)/.scratch/shots pytest tests/studio/test_browser.py
	if [ -d checkpoints/toy/grpo ]; then $(PY) scripts/site/pictures.py checkpoints docs/pictures; fi
	$(PY) scripts/site/terminal_pictures.py

# Everybody runs this before they stop: half a minute where the caches are warm.
check: install
	ruff check .
	ruff format --check .
	mypy
	$(PY) scripts/judge/try_python.py --types
	lint-imports
	$(PY) scripts/judge/measures.py --budget docs/architecture.md
	$(PY) scripts/ci/check_commits.py

# First what is light, verl's imports included; then what starts Ray, an engine, PostgreSQL, a browser or the real
# trinity-rft, file by file in the order of tests/conftest.py. Two files at a time; three of
# the light ones, which wait for a quarter of their time. What fails runs once more, alone; each part leaves its times
# in .scratch/tests (scripts/ci/run_tests.py, scripts/ci/test_times.py).
HEAVY := runtime or whole or upstream or postgres or browser
HEAVY_PARTS := ($(HEAVY)) and not whole
EACH_TIME := not chaos and not nightly
PART := $(PY) scripts/ci/run_tests.py
BY_FILE := --dist loadfile --no-loadscope-reorder

test: check test-light test-heavy

# Without its Debian packages a test is skipped with a reason; where CI is set it fails. Where the environment asks
# for no bytecode (PYTHONDONTWRITEBYTECODE), each process that a test starts would compile the package anew.
test-setup: install-tests
	@$(PY) -m compileall -q trinity_compat
	@scripts/ci/install_system.sh || [ -z "$$CI" ]
	@scripts/ci/make_npm.sh || [ -z "$$CI" ]
	@{ scripts/ci/install_system.sh requirements/debian-web.txt && scripts/site/build_web_parser.sh && scripts/site/make_pyodide.sh; } || \
	  [ -z "$$CI" ]

test-light: test-setup
	$(PART) light -n 3 $(BY_FILE) -m "not ($(HEAVY)) and $(EACH_TIME)" $(PYTEST_ARGS)

test-heavy: test-setup
	$(PART) heavy -n 2 $(BY_FILE) -m "($(HEAVY_PARTS)) and $(EACH_TIME)" $(PYTEST_ARGS)

# Jobs with every process real, to their end or until they are killed (docs/testing.md).
test-whole: test-setup
	$(PART) whole -n 2 $(BY_FILE) -m "whole and $(EACH_TIME)" $(PYTEST_ARGS)

# Rows of the GPU proof that show its script to work; those that train need no CI: other tests train the same.
PROOF := $(PY) scripts/gpu/proof.py --device cpu --out $(or $(CI_OUT),.scratch/tests)/proof --rows

proof: install
	$(PROOF) imports doctor mid-answer nccl sleep seeds

# Everything that the commands say of the recorded launches; a difference is meant, or a fault.
behaviour: install
	$(PY) scripts/judge/record_behaviour.py --digests && git diff --exit-code --stat tests/facts/behaviour.txt

starts-sample: test-setup
	scripts/judge/starts_sample.sh

# Before a tag: wheel and sdist, each alone in a fresh venv, the README's commands, the pages' links, one version.
release-check: install
	$(PY) scripts/ci/release_check.py $(RELEASE_ARGS)

# All of a release in .scratch/release/VERSION, from a clean tree: wheel, sdist, site, web page, notes; checked.
release: test-setup
	scripts/ci/make_release.sh

# The site, in .scratch/site: mkdocs-material in an environment of its own; a link that leads nowhere is an error.
docs: .venv-docs/requirements.txt
	.venv-docs/bin/mkdocs build --strict

# The same in .scratch/versions/VERSION, beside others that were built there, with a list to choose from.
docs-version: .venv-docs/requirements.txt
	.venv-docs/bin/python scripts/site/site_versions.py .scratch/versions --name $(or $(VERSION),dev)

.venv-docs/requirements.txt: requirements/hashes/docs.txt
	python3 -m venv .venv-docs
	.venv-docs/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/hashes/docs.txt
	@cp requirements/hashes/docs.txt $@

# The parts that the change since the last landed commit (.ci/landed) can break: scripts/ci/changed.py says which are
# left out. Whole jobs run among the heavy tests, so that both workers end at about the same time. The heavy tests come
# last: they know when there is no time left (TESTS_LAST_START).
test-changed: check
	@set -e; parts=$$($(PY) scripts/ci/changed.py); \
	has() { echo "$$parts" | grep -qx "$$1"; }; \
	heavy=; for part in runtime postgres browser upstream; do \
	  if has $$part; then heavy="$${heavy:+$$heavy or }$$part"; fi; done; \
	$(MAKE) test-light; \
	if has proof; then $(MAKE) proof; fi; \
	if has starts; then $(MAKE) starts-sample; fi; \
	if has whole; then $(MAKE) test-heavy HEAVY_PARTS="$${heavy:+$$heavy or }whole"; \
	elif [ -n "$$heavy" ]; then $(MAKE) test-heavy HEAVY_PARTS="($$heavy) and not whole"; fi

# The page that translates in a browser (docs/web.md), in .scratch/web/site; `make docs` takes it into the site.
web: install web-parser
	scripts/ci/make_wheels.sh
	scripts/site/make_pyodide.sh
	$(PY) scripts/site/make_web.py

# The shell parser of the web page, in .scratch/web/parser (docs/web.md).
web-parser:
	scripts/site/build_web_parser.sh

# Whole runs that CI has no time for, which launches of veRL's main start, and whether the tests of what changed since
# the last landed commit can fail.
nightly: test-setup
	$(PART) nightly -m nightly $(PYTEST_ARGS)
	$(PROOF) toy broadcast
	scripts/judge/main_starts.sh
	scripts/judge/try_releases.sh own
	scripts/judge/try_releases.sh 0.9.0
	-scripts/judge/try_releases.sh newest
	$(PY) scripts/judge/try_python.py 3.10 3.14
	$(PY) scripts/judge/mutate.py --changed "$$(cat .ci/landed)" --rest --at-least 0.9

# Other people's scripts, from reading to starting (docs/measurements/starts.md): one table.
weekly: test-setup
	PYTHONPATH=$(CURDIR)/tests/vision_site:$$(scripts/ci/unpack_vision.sh) \
	  $(PY) scripts/judge/weekly_proof.py tests/facts/unseen.txt tests/facts/unseen2.txt --fetch -v \
	  --mirror .scratch/mirror --vllm $$(scripts/ci/unpack_vllm.sh) --json .scratch/weekly.json

bench: install
	@for b in benchmarks/*.py; do echo "== $$b"; $(PY) $$b || exit 1; done

# How many public launches start (docs/measurements/starts.md): two passes of a few minutes each.
CORPUS ?= tests/facts/public.json.xz
starts: install
	PYTHONPATH=$(CURDIR)/tests/vision_site:$$(scripts/ci/unpack_vision.sh) \
	  $(PY) scripts/judge/start_corpus.py $(CORPUS) --device cuda --vllm $$(scripts/ci/unpack_vllm.sh)
	$(PY) scripts/judge/start_corpus.py $(CORPUS) --device cpu

# Stock veRL against ours, seed by seed; goes on where it was stopped. 50-150 s for each of 50 runs when idle.
parity: install
	$(PY) benchmarks/parity/run.py --out .scratch/parity $(PARITY_ARGS)

# The long kill matrix (docs/measurements/durability.md): the store alone, then whole jobs; the jobs go on where they were stopped.
chaos: install
	$(PY) tests/buffer/chaos.py sqlite --kills 1000
	$(PY) tests/buffer/chaos.py postgresql --kills 1000 --restarts 100
	TRINITY_COMPAT_STEPS=10000 pytest tests/buffer/test_buffer_stateful.py
	pytest tests/chaos -m chaos
	$(PY) benchmarks/chaos/run.py --out .scratch/chaos $(CHAOS_ARGS)

# Whether the light tests can fail: a seeded sample of mutants (docs/testing.md); goes on where it was stopped.
mutate: install
	$(PY) scripts/judge/mutate.py --out .scratch/mutate $(MUTATE_ARGS)

clean:
	rm -rf .venv .venv-upstream-* .vision* .vllm-* .wheels* .pyodide* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
