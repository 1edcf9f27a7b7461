# `make` prints the targets. Everything lives in .venv and artifacts/; nothing is installed elsewhere.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNEL := src/quiver/_kernel.abi3.so
WHEEL_TEST := build/test-wheel
KERNEL_TESTS := tests/kernel tests/aof/format tests/store/format tests/otap/tables/test_any_values.py
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the tests import the same modules: without compiled ones, each compiles all of them.
unexport PYTHONDONTWRITEBYTECODE

# The first Python here that runs and is new enough; `make setup PYTHON=/path/to/python` overrides it.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

KILL_CYCLES ?= 10000
CRASH_STATES ?= 1000000
SOAK_SECONDS ?= 600
DELIVERY_SECONDS ?= 300
FLEET_SOAK_SECONDS ?= 600
STRACE_STRIDE ?= 1
SPARK ?= 4.3
SPARK_VENV := build/spark-$(SPARK)
FUZZ_INPUTS ?= 1000000
TWIN_INPUTS ?= 500

.PHONY: help setup kernel demo demo-fleet docs release test test-pure test-kernel-asan test-fast test-slow test-kill test-crash-states test-strace test-soak test-fleet-soak test-sealed test-spark test-cluster test-kafka test-delta-jars test-deploy test-etcd test-flight test-browser test-versity test-emulators lint format bench bench-pure bench-quick rival-rust rival-otap test-otap rival-collector test-collector fuzz wheel test-wheel lock clean

help: ## print this
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) $(KERNEL) ## build .venv from requirements.lock; needs Python 3.11 or newer

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Quiver needs Python 3.11 or newer; none was found on PATH." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv package (on Debian: apt install python3-venv)." >&2; \
		exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version); the first time takes a minute or two."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --use-pep517 --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

kernel: ## build the compiled kernel in place, if there is a C compiler
	@rm -f $(KERNEL)
	@$(MAKE) --no-print-directory $(KERNEL)

$(KERNEL): $(wildcard kernel/*.c kernel/*.h) hatch_build.py | $(READY)
	@$(BIN)/python hatch_build.py

demo: $(READY) $(KERNEL) ## OTLP in, two kills of the ingest, one of Spark, Parquet out, nothing missing
	$(BIN)/quiver demo

docs: build/docs/.ready ## the documentation as a site with search, in build/site; broken links and anchors fail
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict

build/docs/.ready: requirements-docs.lock | $(READY)
	@test -x build/docs/bin/python || $(BIN)/python -m venv build/docs
	@build/docs/bin/python -m pip install --quiet --require-hashes -r requirements-docs.lock
	@touch $@

release: $(READY) ## version, changelog, wheel and source distribution, commit and tag (VERSION=0.2.0)
	@$(BIN)/python tools/release.py $(VERSION)

demo-fleet: $(READY) $(KERNEL) ## 20 nodes, one bucket, one Spark query; two killed, one cloned, one offline; nothing missing
	$(BIN)/python examples/fleet_demo.py

test: $(READY) $(KERNEL) ## the default suite
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup $(PYTEST_ARGS)

test-pure: $(READY) ## the default suite without the compiled kernel
	QUIVER_PURE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup $(PYTEST_ARGS)

test-kernel-asan: $(READY) ## the tests of the compiled kernel with AddressSanitizer and UndefinedBehaviorSanitizer (needs gcc; TWIN_INPUTS=20000 for all inputs)
	@rm -rf build/asan
	@mkdir -p build/asan
	@cp -R src build/asan/src
	$(BIN)/python hatch_build.py --sanitize --target build/asan/src/quiver/_kernel.abi3.so
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONMALLOC=malloc $(BIN)/python -m pytest -o pythonpath="build/asan/src tools" -o faulthandler_timeout=0 \
		--twin-inputs $(TWIN_INPUTS) $(PYTEST_ARGS) $(KERNEL_TESTS)

test-fast: $(READY) $(KERNEL) ## what takes less than two minutes and needs no Java, for every change
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup --fast --ignore=tests/spark

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-kill: $(READY) ## ten thousand real kill -9 cycles (KILL_CYCLES=500 for fewer)
	$(BIN)/python -m pytest -m kill --kill-cycles $(KILL_CYCLES) -o faulthandler_timeout=0

test-crash-states: $(READY) ## a million enumerated crash states (CRASH_STATES=20000 for fewer)
	$(BIN)/python -m pytest -m crash_states -s --crash-states $(CRASH_STATES) -o faulthandler_timeout=0

test-strace: $(READY) ## SIGKILL, EIO, ENOSPC at every system call (needs strace; STRACE_STRIDE=9 for every ninth)
	$(BIN)/python -m pytest -m strace --strace-stride $(STRACE_STRIDE) -o faulthandler_timeout=0

test-soak: $(READY) ## producers, subscribers and kills for ten minutes a variant (SOAK_SECONDS=60 for less)
	$(BIN)/python -m pytest -m soak --soak-seconds $(SOAK_SECONDS) --delivery-seconds $(DELIVERY_SECONDS) \
		-o faulthandler_timeout=0

test-fleet-soak: $(READY) ## 200 nodes, a real S3 server and a Spark query, killed for ten minutes (FLEET_SOAK_SECONDS=120 for less)
	$(BIN)/python -m pytest -m fleet_soak -s --fleet-soak-seconds $(FLEET_SOAK_SECONDS) -o faulthandler_timeout=0

test-sealed: $(READY) $(KERNEL) ## the tests of stores, crashes, models and deliveries without delivery before the seal
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup --deliver-sealed tests/store tests/crash tests/model \
		tests/delivery tests/exporters tests/receivers $(PYTEST_ARGS)

test-etcd: $(READY) build/bin/etcd ## metadata on a real etcd, built from source (needs Go)
	$(BIN)/python -m pytest -m etcd
	$(BIN)/python -m pytest tests/metadata

build/bin/etcd:
	mkdir -p build/bin build/etcd
	cp tests/metadata/etcd_build/* build/etcd/
	cd build/etcd && go mod tidy && CGO_ENABLED=0 go build -o ../bin/etcd .

test-versity: $(READY) build/bin/versitygw ## objects on a second S3 server, built from source (needs Go)
	$(BIN)/python -m pytest -m versity

build/bin/versitygw:
	mkdir -p build/bin
	GOBIN=$(CURDIR)/build/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

test-emulators: $(READY) build/bin/fake-gcs-server build/azurite/.ready ## objects and the Parquet exporter on emulators of Google Cloud Storage and Azure (needs Go and npm)
	$(BIN)/python -m pytest -m emulators -o faulthandler_timeout=0

build/bin/fake-gcs-server:
	mkdir -p build/bin
	CGO_ENABLED=0 GOBIN=$(CURDIR)/build/bin go install github.com/fsouza/fake-gcs-server@v1.55.1

build/azurite/.ready:
	npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.37.0
	@touch $@

test-collector: $(READY) build/bin/otelcol-rival ## a real Collector between our exporters and receivers, with kills (needs Go)
	$(BIN)/python -m pytest -m collector

test-otap: $(READY) rival-otap ## OTAP to and from the Rust crates, as messages and as streams (needs cargo)
	$(BIN)/python -m pytest -m slow tests/otap/test_otap_driver.py

fuzz: $(READY) $(KERNEL) ## a million broken inputs for each decoder of the wire (FUZZ_INPUTS=10000 for fewer)
	$(BIN)/python -m pytest -m slow tests/otap/test_decoder_fuzz.py tests/receivers/test_receiver_fuzz.py \
		tests/kernel/test_twins.py --fuzz-inputs $(FUZZ_INPUTS) -o faulthandler_timeout=0

test-flight: $(READY) build/bin/flight-client ## a client of Arrow Flight in Go against our server (needs Go)
	$(BIN)/python -m pytest -m flight_go

build/bin/flight-client: tests/receivers/flight/go_client/main.go tests/receivers/flight/go_client/go.mod
	mkdir -p build/bin build/flight
	cp tests/receivers/flight/go_client/* build/flight/
	cd build/flight && go mod tidy && CGO_ENABLED=0 go build -o ../bin/flight-client .

test-browser: $(READY) build/browser/.ready ## the status page in a real Chromium (needs chromium, or CHROMIUM=/path/to/it)
	$(BIN)/python -m pytest -m browser

build/browser/.ready: tests/cli/status/browser.lock | $(READY)
	@$(BIN)/python -m pip install --quiet --require-hashes -r tests/cli/status/browser.lock
	@mkdir -p build/browser
	@touch $@

test-deploy: $(READY) build/bin/promtool build/kubernetes/.ready ## Prometheus' and Kubernetes' own checks of the files in deploy/ (needs Go)
	$(BIN)/python -m pytest -m deploy
	$(BIN)/python -m pytest tests/deploy

# Its go.mod has replacements, with which `go install` does not work.
build/bin/promtool: tests/deploy/promtool_build/go.mod
	mkdir -p build/bin build/promtool
	cp tests/deploy/promtool_build/go.mod build/promtool/
	cd build/promtool && CGO_ENABLED=0 go build -mod=mod -o ../bin/promtool github.com/prometheus/prometheus/cmd/promtool

# 100 MB of schemas, which nothing else needs.
build/kubernetes/.ready: | $(READY)
	$(BIN)/python -m pip install --quiet --target build/kubernetes kubernetes-validate==1.37.0
	@touch $@

test-cluster: $(READY) ## a Spark cluster of one master and two workers on loopback, and Spark Connect
	$(BIN)/python -m pytest -m cluster

test-kafka: $(READY) build/kafka/.ready build/spark-4.0/.ready ## Kafka as a destination and a source, on a real broker (needs mvn)
	$(BIN)/python -m pytest -m kafka -o faulthandler_timeout=0

build/kafka/.ready: tests/kafka_build/broker.xml tests/kafka_build/connector.xml
	mvn --quiet --batch-mode -f tests/kafka_build/broker.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(CURDIR)/build/kafka/broker
	mvn --quiet --batch-mode -f tests/kafka_build/connector.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(CURDIR)/build/kafka/connector
	@touch $@

test-delta-jars: build/spark-4.2/.ready $(KERNEL) ## Delta tables with Delta's own writer for Spark, on PySpark 4.2 (fetches its jars)
	build/spark-4.2/bin/python -m pytest -m delta_jars -o faulthandler_timeout=0

test-spark: $(SPARK_VENV)/.ready $(KERNEL) ## the Spark tests on one version of PySpark (SPARK=4.2; 4.0, 4.1, 4.2 or 4.3)
	$(SPARK_VENV)/bin/python -m pytest -n 1 --dist loadgroup --spark $(PYTEST_ARGS)

# The pinned packages, but another PySpark.
build/spark-%/.ready: requirements.lock tests/spark/pyspark.lock pyproject.toml | $(READY)
	@grep -q '^pyspark==$*\.' tests/spark/pyspark.lock || { \
		echo "SPARK=$*: tests/spark/pyspark.lock has" $$(sed -n 's/^pyspark==//p' tests/spark/pyspark.lock | cut -d' ' -f1) >&2; \
		exit 1; }
	@echo "Setting up build/spark-$*; the first time takes some minutes."
	@test -x build/spark-$*/bin/python || $(BIN)/python -m venv build/spark-$*
	@awk '/^[a-z]/ { other = /^pyspark==/ } !other' requirements.lock > build/spark-$*/requirements.lock
	@grep '^pyspark==$*\.' tests/spark/pyspark.lock >> build/spark-$*/requirements.lock
	@build/spark-$*/bin/python -m pip install --quiet --use-pep517 --require-hashes -r build/spark-$*/requirements.lock
	@build/spark-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

lint: $(READY) ## ruff, mypy and the repository's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "run make format" >&2; exit 1; }
	$(BIN)/mypy
	$(BIN)/python tools/tidy.py

format: $(READY) ## let ruff format the tree and mend what it can
	$(BIN)/ruff check --quiet --fix . || true
	$(BIN)/ruff format .

bench: $(READY) $(KERNEL) build/spark-4.2/.ready ## measure beside rivals: ratios, with the noise (make rival-rust first, to have that one too)
	$(BIN)/python bench/ingest.py --write docs/benchmarks.md
	$(BIN)/python bench/engines.py --write docs/benchmarks.md
	$(BIN)/python bench/goals.py --write docs/benchmarks.md
	$(BIN)/python bench/startup.py --write docs/benchmarks.md
	$(BIN)/python bench/decode.py --write docs/benchmarks.md
	$(BIN)/python bench/receive.py --write docs/benchmarks.md
	$(BIN)/python bench/spark_read.py --write docs/benchmarks.md
	$(BIN)/python bench/pipeline.py --write docs/benchmarks.md
	$(BIN)/python bench/overhead.py --write docs/benchmarks.md
	PYTHONPATH=bench $(BIN)/python bench/figures/early_delivery.py --write docs/benchmarks.md
	PYTHONPATH=bench $(BIN)/python bench/figures/record_steps.py --write docs/benchmarks.md
	PYTHONPATH=bench $(BIN)/python bench/figures/tables.py --write docs/benchmarks.md
	PYTHONPATH=bench $(BIN)/python bench/figures/table_commits.py --write docs/benchmarks.md
	PYTHONPATH=bench build/spark-4.2/bin/python bench/figures/spark_tables.py \
		--delta io.delta:delta-spark_2.13:4.2.0 --write docs/benchmarks.md
	PYTHONPATH=bench $(BIN)/python bench/figures/flight.py --write docs/benchmarks.md
	$(BIN)/python bench/forward.py --write docs/benchmarks.md
	$(BIN)/python bench/topics.py --write docs/benchmarks.md
	$(BIN)/python bench/aof.py --write docs/benchmarks.md
	$(BIN)/python bench/qwp.py --write docs/benchmarks.md

BENCH_PURE := ingest goals startup receive pipeline overhead topics aof qwp

bench-pure: $(READY) ## measure again without the compiled kernel: the last column of the summary (make bench first)
	for script in $(BENCH_PURE); do \
		QUIVER_PURE=1 $(BIN)/python bench/$$script.py --write docs/benchmarks.md || exit 1; \
	done

bench-quick: $(READY) ## the most important comparisons, with less work
	$(BIN)/python bench/quick.py

rival-rust: ## build the Rust engine's driver for bench and interoperability tests; needs cargo, takes minutes
	cd bench/rivals/rust_engine && cargo build --release

rival-otap: ## build the driver of the Rust OTAP crates for interoperability tests; needs cargo, takes minutes
	cd bench/rivals/otap_driver && cargo build --release

rival-collector: build/bin/otelcol-rival ## build the Collector for bench and interoperability tests; needs Go, takes minutes

build/bin/otelcol-rival: bench/rivals/collector/manifest.yaml
	mkdir -p build/bin build/collector
	GOBIN=$(CURDIR)/build/bin go install go.opentelemetry.io/collector/cmd/builder@v0.161.0
	CGO_ENABLED=0 build/bin/builder --config bench/rivals/collector/manifest.yaml --ldflags="-s -w"
	mv build/collector/otelcol-rival $@

wheel: $(READY) ## build dist/arrow_quiver-*.whl
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

# `quiver --version` ends in the reason if there is no compiled kernel. The tests must not find src/.
test-wheel: $(READY) ## the default suite on the installed wheel, in a new environment (PYTHON=python3.13 for that Python)
	@rm -rf $(WHEEL_TEST)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEEL_TEST) .
	$(PYTHON) -m venv $(WHEEL_TEST)/venv
	$(WHEEL_TEST)/venv/bin/python -m pip install --quiet --use-pep517 --require-hashes -r requirements.lock
	$(WHEEL_TEST)/venv/bin/python -m pip install --quiet --no-deps $(WHEEL_TEST)/*.whl
	$(WHEEL_TEST)/venv/bin/quiver --version | tee /dev/stderr | grep -q ', compiled kernel)$$'
	$(WHEEL_TEST)/venv/bin/python -m pytest -o pythonpath=tools -n auto --maxprocesses 4 --dist loadgroup $(PYTEST_ARGS)

lock: $(READY) ## pin again what pyproject.toml asks for, with hashes
	$(BIN)/python -m pip install --quiet pip-tools
	@mkdir -p build
	$(BIN)/pip-compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --strip-extras --no-build-isolation --extra dev --unsafe-package arrow-quiver \
		--output-file build/requirements.txt pyproject.toml
	@{ echo "# What is tested, pinned and hashed; \`make setup\` installs it. Made by \`make lock\` from pyproject.toml."; \
		grep -vE '^(#|$$)' build/requirements.txt; } > requirements.lock
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['docs'], sep='\n')" \
		> build/docs.in
	$(BIN)/pip-compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --strip-extras --output-file build/docs.txt build/docs.in
	@{ echo "# The packages of \`make docs\`, pinned and hashed. Made by \`make lock\` from the group \`docs\` of pyproject.toml."; \
		grep -vE '^(#|$$)' build/docs.txt; } > requirements-docs.lock

clean: ## remove what the other targets made, except .venv
	rm -rf dist build artifacts demo-run fleet-demo-run bench-* .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		spark-warehouse metastore_db derby.log
