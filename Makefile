# The commands of this repository; README.md says what each is for. Everything they install is listed in scripts/setup.sh.
SHELL := /bin/bash
.DEFAULT_GOAL := help
JOBS ?= 2
MODEL := models/smollm2-135m-instruct.Q4_1.gguf
BINARY := build/release/tandem

.PHONY: help setup build demo up check test soak bench peers arm64 reference format lint clean

help:
	@echo "make demo       install what is missing, build, fetch a small model, talk to it through a prefill/decode pair"
	@echo "make up         serve the small model on port 8000"
	@echo "make build      the program: $(BINARY)"
	@echo "make check      for every edit: release build, unit tests, lint of changed files"
	@echo "make test       everything: unit and end-to-end tests, sanitizers, fuzzers, lint"
	@echo "make soak       long chaos, fuzz and sanitizer runs"
	@echo "make bench      the benchmarks behind docs/performance.md"
	@echo "make peers      installs vLLM's CPU build (9 GB) and runs the router in front of a real prefill/decode pair of it"
	@echo "make reference  installs the reference implementations and checks against them, making the golden files again"
	@echo "make arm64      builds for 64-bit ARM (reference kernels) and runs unit tests in an emulator"
	@echo "make format, make lint, make clean"

setup:
	@scripts/setup.sh

build: setup
	@cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset release -j $(JOBS)

$(MODEL):
	@scripts/fetch-model.sh smollm2-135m

demo: build $(MODEL)
	@scripts/demo.sh $(BINARY) $(MODEL)

up: build $(MODEL)
	@$(BINARY) up $(MODEL)

check: build
	@scripts/test.sh check

test: setup
	@scripts/test.sh all

soak: setup
	@scripts/test.sh soak

bench: build $(MODEL)
	@scripts/bench.sh

peers: build $(MODEL)
	@scripts/test.sh venv
	@scripts/peers.sh all

arm64: setup
	@scripts/arm64.sh

reference: build $(MODEL)
	@scripts/reference/setup.sh
	@scripts/reference/run.sh

format:
	@scripts/lint.sh format

lint: setup
	@scripts/lint.sh all

clean:
	@rm -rf build
