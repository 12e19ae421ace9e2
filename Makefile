.PHONY: check demo fast

check:  ## what CI runs
	./scripts/test

fast:  ## style, types and the fast tests, in an environment that is already made
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports
	.venv/bin/pytest -q -m "not model"

demo:
	./scripts/demo
