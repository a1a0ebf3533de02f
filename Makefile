# Everything here works on every module of the tree: the one that is published
# and those beside it that keep drivers and SDKs out of its go.mod.
#
#   make help       what there is
#   make check      what a change must pass

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO        ?= go
FUZZTIME  ?= 30s
BENCHTIME ?= 1s
BENCH     ?= .
ROUNDS    ?= 5
ROWS      ?= 1000000

GOLANGCI_VERSION    := v2.12.2
GOVULNCHECK_VERSION := v1.9.0

BIN      := $(CURDIR)/bin
GOLANGCI := $(BIN)/golangci-lint-$(GOLANGCI_VERSION)
# Of its own: findings carry paths, and those of another checkout match no rule.
export GOLANGCI_LINT_CACHE := $(BIN)/lint-cache

# The root first, then the nested ones.
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/testdata/*' -not -path './bin/*' -not -path '*/.*/*')))

# PACKAGE:BINARY of what the tests start.
DATABASES := postgresql:/usr/lib/postgresql/*/bin/postgres pgbouncer:/usr/sbin/pgbouncer mariadb-server:/usr/sbin/mariadbd \
	galera-4:/usr/lib/galera/libgalera_smm.so redis-server:/usr/bin/redis-server

# $(call missing,LIST) prints the packages whose binary is nowhere.
missing = for service in $(1); do compgen -G "$${service\#*:}" >/dev/null || command -v "$${service\#\#*/}" >/dev/null || echo "$${service%%:*}"; done

# $(call each,COMMAND) runs it in every module; the first that fails ends it.
each = for module in $(MODULES); do echo "-- $$module: $(strip $(1))"; (cd "$$module" && $(1)); done

.PHONY: help
help: ## Show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  %-12s %s\n", $$1, $$2 }'
	@echo
	@echo "  SCHEDULES=$(SCHEDULES) FUZZTIME=$(FUZZTIME) BENCHTIME=$(BENCHTIME) BENCH=$(BENCH) ROUNDS=$(ROUNDS) ROWS=$(ROWS) can be set, as in: make fuzz FUZZTIME=10s"

# ---- tests

.PHONY: test
test: databases ## Run every test of every module
	@$(call each,$(GO) test -timeout 20m ./...)

.PHONY: race
race: databases ## Run every test with the race detector, in random order
	@$(call each,$(GO) test -race -shuffle=on -timeout 20m ./...)

# go test keeps the reason of a skip to itself, so it is said here.
.PHONY: databases
databases:
	@for package in $$($(call missing,$(DATABASES))); do \
		echo "skip: $$package is not installed, its tests do not run ('make services' installs it)"; \
	done

SCHEDULES ?= 200000

# The same schedules as in the tests, but more of them: ONCEMORE_SEED repeats one.
.PHONY: soak
soak: ## Run SCHEDULES random schedules against the model of a key
	ONCEMORE_SCHEDULES=$(SCHEDULES) $(GO) test -race -timeout 0 -run Property -count=1 ./server

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME
	@for module in $(MODULES); do (cd "$$module"; \
		for dir in $$($(GO) list -f '{{.Dir}}' ./...); do \
			for target in $$(cat "$$dir"/*_test.go 2>/dev/null | sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p'); do \
				echo "-- $$dir: $$target"; \
				$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir"; \
			done; \
		done); \
	done

.PHONY: bench
bench: ## Print the table of docs/benchmarks.md, measured in ROUNDS rounds
	@cd benchmarks && $(GO) test -count=1 -timeout 30m -run '^TestTable$$' -rounds $(ROUNDS)

.PHONY: bench-stores
bench-stores: databases ## Print the tables of the stores in docs/benchmarks.md, ROUNDS rounds and ROWS rows
	@cd integration && $(GO) test -count=1 -timeout 60m -run '^TestTable$$' -rounds $(ROUNDS) -rows $(ROWS)

.PHONY: bench-go
bench-go: ## Run each benchmark function for BENCHTIME
	@$(call each,$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...)

# ---- checks

.PHONY: check
check: format vet lint tidy race ## Run what a change must pass: format vet lint tidy race

.PHONY: format
format: tools ## Show what gofumpt and gci would change, and fail if there is anything
	@$(GOLANGCI) fmt --diff

.PHONY: fmt
fmt: tools ## Format everything
	@$(GOLANGCI) fmt

.PHONY: vet
vet: ## Run go vet
	@$(call each,$(GO) vet ./...)

.PHONY: lint
lint: tools ## Run golangci-lint
	@$(call each,$(GOLANGCI) run --allow-parallel-runners ./...)

.PHONY: tidy
tidy: ## Fail if a go.mod or go.sum is not tidy
	@$(call each,$(GO) mod tidy -diff)

.PHONY: vuln
vuln: ## Look for known vulnerabilities (needs https://vuln.go.dev)
	@$(call each,$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...)

# ---- what they need

.PHONY: tools
tools: $(GOLANGCI) ## Build the pinned tools into bin/

# Kept by version: a new version is a new file, an old one is left to whoever
# goes back to an older commit.
$(GOLANGCI):
	@echo "-- building golangci-lint $(GOLANGCI_VERSION) into bin/: some minutes, once"
	@GOBIN=$(BIN)/build $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/build/golangci-lint $@

.PHONY: services
services: ## Install PostgreSQL, PgBouncer, MariaDB with Galera, and Redis from Debian's packages, where missing (root or sudo)
	@missing=($$($(call missing,$(DATABASES)))); \
	if [ $${#missing[@]} -eq 0 ]; then \
		echo "all databases are installed; the tests start servers of their own"; exit 0; \
	fi; \
	command -v apt-get >/dev/null || { \
		echo "missing: $${missing[*]}; there is no apt-get here, so install their like by hand" >&2; exit 1; }; \
	sudo=(); \
	if [ "$$(id -u)" -ne 0 ]; then \
		command -v sudo >/dev/null || { echo "installing $${missing[*]} needs root, and there is no sudo" >&2; exit 1; }; \
		echo "installing $${missing[*]} needs root: sudo may ask for your password"; sudo=(sudo); \
	fi; \
	$${sudo[@]+"$${sudo[@]}"} apt-get update -q; \
	$${sudo[@]+"$${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$${missing[@]}"
