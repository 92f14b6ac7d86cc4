# The usual commands. `make` alone builds.
CARGO ?= cargo
DATA ?= ./data
LISTEN ?= 127.0.0.1:7800
BROKER ?= nats

.PHONY: build release run test lint bench bench-cluster cluster clean

build:
	$(CARGO) build --profile quick -p cueline

# What is released and measured: optimised across crates.
release:
	$(CARGO) build --release -p cueline

# Everything in one process, with nothing else installed, and a dozen example jobs.
run: build
	./target/quick/cueline standalone --data $(DATA) --listen $(LISTEN) --jobs examples/jobs.toml

# All tests, several programs at once; the ten slowest tests are listed at the end. Also builds the programs that scenarios start.
test:
	infra/dev/servers
	infra/dev/test

# The last command checks the dependencies. Without a network, it skips what it cannot check and says so.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	CARGO="$(CARGO)" infra/dev/deny

# Prints numbers; asserts none.
bench: release
	./target/release/cueline bench

# The same on a cluster of processes with servers of its own, and the ceiling of those servers. BROKER=rabbitmq for the other broker.
bench-cluster: release
	infra/dev/servers postgres $(BROKER)
	CUELINE=$(CURDIR)/target/release/cueline infra/dev/bench $(BROKER) --ceiling

# Two schedulers and three workers on real servers, from native binaries, until Ctrl-C. A process that ends is started again.
# BROKER=rabbitmq for the other broker.
cluster: build
	infra/dev/servers postgres $(BROKER)
	infra/dev/cluster $(BROKER)

clean:
	$(CARGO) clean
