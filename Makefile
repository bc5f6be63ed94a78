# The one door. Everything that takes more than a line is in scripts/; paths are relative, because make cannot handle a
# space in an absolute one.

.DEFAULT_GOAL := help
.PHONY: help setup shims demo lint check test fuzz soak clean
ARGS ?=

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16
	@echo "  ARGS='...' is passed on to pytest: make test ARGS='-k gateway'"

setup: ## make .venv and install what is missing on this machine (needs root or sudo for that)
	@scripts/setup.sh

shims: ## compile the static programs of shims/ into agenthost/bin
	@scripts/build-shims.sh agenthost/bin

demo: ## one real Codex turn in a view, against a scripted model: no key, no internet
	@scripts/demo.sh

lint: ## format, lint, types
	@scripts/lint.sh

check: ## what lint does, structure, and the fast tests: before every commit
	@scripts/check.sh $(ARGS)

test: ## the whole test suite (as root: everything; else what can be run)
	@scripts/test.sh $(ARGS)

fuzz: ## the property tests with many more examples each
	@AGENTHOST_TEST_HYPOTHESIS=fuzz scripts/test.sh --timeout=0 -m hypothesis $(ARGS)

soak: ## the tests that repeat something for minutes
	@scripts/test.sh --timeout=0 -m soak $(ARGS)

clean: ## remove all that make has made here
	rm -rf .venv build dist agenthost/bin agenthost/contracts ./*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find agenthost tests shims -name __pycache__ -prune -exec rm -rf {} +
