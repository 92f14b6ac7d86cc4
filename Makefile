# The commands that everybody uses. `make` alone builds.
CARGO ?= cargo
DATA ?= ./data
LISTEN ?= 127.0.0.1:7800

.PHONY: build run test lint bench clean

build:
	$(CARGO) build --release -p cueline

# The main job: everything in one process, with nothing else installed, and a dozen example jobs.
run: build
	./target/release/cueline standalone --data $(DATA) --listen $(LISTEN) --jobs examples/jobs.toml

# All tests. The programs that scenarios start are built first: a test of another crate does not build them by itself.
test:
	$(CARGO) build -p cueline -p cueline-tests --bins
	$(CARGO) test --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

# Prints numbers; asserts none.
bench: build
	./target/release/cueline bench

clean:
	$(CARGO) clean
