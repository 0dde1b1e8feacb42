# Two commands on a fresh machine: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3.11
PACKAGES = msmon-stats msmon-hooks msmon-alert msmon-io msmon
EDITABLE = $(foreach p,$(PACKAGES),-e packages/$(p))
BIN = .venv/bin
ARGS ?=

# DeepSpeed compiles this at its first use and keeps it in the user's cache. It takes longer than a test may, and one that is
# stopped meanwhile leaves a lock for which all others wait.
SHM_OP = DS_ACCELERATOR=cpu timeout 900 $(BIN)/python -c "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as op; op().load()" > /dev/null

.PHONY: venv demo test test-mindspore test-trainers test-compiled test-old-megatron test-triton-ascend test-oldest coverage fuzz soak faults parallel-faults check docs bench dist clean

venv: .venv/.ready .venv-mindspore/.ready

.venv/.ready: pyproject.toml $(foreach p,$(PACKAGES),packages/$(p)/pyproject.toml)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q --group dev
	$(BIN)/python -m pip install -q --no-deps $(EDITABLE)
	-$(SHM_OP)
	touch $@

.venv-mindspore/.ready: pyproject.toml $(foreach p,$(PACKAGES),packages/$(p)/pyproject.toml)
	$(PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python -m pip install -q --upgrade "pip>=25.1"
	.venv-mindspore/bin/python -m pip install -q --group mindspore
	.venv-mindspore/bin/python -m pip install -q --no-deps $(EDITABLE)
	touch $@

.venv-trainers/.ready: pyproject.toml $(foreach p,$(PACKAGES),packages/$(p)/pyproject.toml)
	$(PYTHON) -m venv .venv-trainers
	.venv-trainers/bin/python -m pip install -q --upgrade "pip>=25.1"
	.venv-trainers/bin/python -m pip install -q --group trainers
	.venv-trainers/bin/python -m pip install -q --no-deps --group trainers-alone
	.venv-trainers/bin/python -m pip install -q --no-deps $(EDITABLE)
	touch $@

demo: .venv/.ready
	$(BIN)/python -m msmon demo $(ARGS)

# MindSpore first, so that the closing line of the large run is the last one.
test: venv test-mindspore
	$(BIN)/python -m pytest $(ARGS)

test-mindspore: .venv-mindspore/.ready
	PATH="$(CURDIR)/.venv-mindspore/bin:$$PATH" .venv-mindspore/bin/python -m pytest -k mindspore tests

# Optimizers and trainers of other packages, in an environment of their own.
test-trainers: .venv-trainers/.ready
	.venv-trainers/bin/python -m pytest tests/trainers $(ARGS)

# Inside of compiled graphs: the whole table of models, dtypes and ways. Prints each line as it is there; compiles for half an hour or more.
test-compiled: .venv/.ready
	MSMON_WHOLE_TABLE=1 $(BIN)/python -m pytest tests/compiled tests/distributed/test_compiled_blocks.py -s --timeout 1800 $(ARGS)

# Megatron's tests again, with megatron-core 0.8.0: the last version whose buckets begin their reductions themselves.
test-old-megatron: .venv/.ready
	$(BIN)/python scripts/old_megatron.py $(ARGS)

# The kernel in float32 in the interpreter of triton-ascend, Triton for Ascend NPUs: a CPU will do.
test-triton-ascend: .venv/.ready
	$(BIN)/python scripts/triton_ascend.py $(ARGS)

# Tests with torch 2.1.2 and the lower bounds of everything else, and without a framework on Python 3.10 and 3.12.
test-oldest: venv
	$(BIN)/python scripts/oldest.py $(ARGS)

# Which lines the tests run. Slower than `make test`, which does not measure.
coverage: .venv/.ready
	$(BIN)/python scripts/line_coverage.py $(ARGS)

# Formatting, types, import rules, spelling, dead code, the site: no warning is left.
check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell *.md mkdocs.yml Makefile docs packages examples scripts
	$(BIN)/vulture
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The documentation as a site, in site/; a warning is an error.
docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

fuzz: .venv/.ready
	MSMON_FUZZ_EXAMPLES=10000 $(BIN)/python -m pytest tests/msmon/test_config_fuzz.py tests/msmon/test_file_fuzz.py --durations=0 $(ARGS)

# 5,000 steps, started and stopped every 50: does anything grow?
soak: .venv/.ready
	$(BIN)/python -m tests.soak $(ARGS)

# The bench of injected faults: which fault the recommended alert rules find, at which step, layer and rank.
faults: .venv/.ready
	$(BIN)/python -m tests.alert.faults.bench $(ARGS)

# The bench of faults of parallelism: which of them `msmon verify` finds, at which step, tensor and rank.
parallel-faults: .venv/.ready
	$(BIN)/python -m tests.distributed.parallel_faults.bench $(ARGS)

bench: .venv/.ready .venv-mindspore/.ready
	mkdir -p .benchmarks
	$(BIN)/python -m pytest tests/benchmarks -s --benchmark-enable --benchmark-json=.benchmarks/torch.json $(ARGS) || [ $$? = 5 ]
	.venv-mindspore/bin/python -m pytest tests/benchmarks -s --benchmark-enable $(ARGS) || [ $$? = 5 ]  # 5: none selected

# Wheels and source distributions; each is then installed and tried alone.
dist: .venv/.ready
	rm -rf dist
	for p in $(PACKAGES); do (cd packages/$$p && $(CURDIR)/$(BIN)/python -m hatch build $(CURDIR)/dist) || exit 1; done
	$(BIN)/python scripts/check_dist.py $(ARGS)

clean:
	rm -rf .venv .venv-mindspore .venv-trainers .megatron .triton-ascend .oldest dist site .mypy_cache .ruff_cache .pytest_cache .benchmarks
