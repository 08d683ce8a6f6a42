# The two commands of the README, and what they stand on.
#   make demo    a label becomes a verified draft pull request, on this machine
#   make test    every test; sets up what it needs itself
#   make test-cgroup2   the sandbox's suite where cgroups are version 2 only
#   make test-openzfs   the store's suite on OpenZFS in the kernel, its speed and the node daemon's
#   make test-nomad     the engine's suite and the demo against a real Nomad agent at NOMAD_ADDR
# Options of the demo: make demo ARGS="--keep"

export CGO_ENABLED := 0
BIN := bin/inspect
SQLC := go tool -modfile=tools/go.mod sqlc
STATICCHECK := go tool -modfile=tools/go.mod staticcheck

.PHONY: setup setup-demo build demo test test-cgroup2 test-openzfs test-nomad bench lint generate drift clean

setup:
	@.ci/setup

setup-demo:
	@.ci/setup demo

# inspect knows its init by content: no other is used.
build:
	@mkdir -p $(dir $(BIN))
	go build -o $(BIN)-init ./cmd/inspect-init
	go build -ldflags "-X main.initSum=$$(sha256sum <$(BIN)-init | cut -d' ' -f1)" -o $(BIN) ./cmd/inspect

demo: setup-demo build
	@$(BIN) demo $(ARGS)

test:
	@.ci/setup tests
	go test -vet=off -ldflags=-w -timeout 40m ./...

# In an emulated machine (.ci/guest), because few have only the one version.
test-cgroup2: setup
	@mkdir -p tmp
	go test -c -o tmp/sandbox.test ./envs/sandbox
	@.ci/guest sh -c 'cd envs/sandbox && INSPECT_TEST_CGROUPS=2 ../../tmp/sandbox.test -test.v -test.timeout 180m $(ARGS)'

# In an emulated machine, too: few have OpenZFS in their kernel. The programs are
# laid over that machine's own files, which it forgets.
test-openzfs: setup
	@mkdir -p tmp
	go test -c -o tmp/zfs.test ./envs/snapshot/zfs
	go test -c -o tmp/node.test ./envs/node
	@made=$$(.ci/openzfs) && GUEST_MEMORY=6144 .ci/guest sh -c "set -e; \
	  for m in $$made/modules/*.ko; do busybox insmod \$$m; done; \
	  cp $$made/sbin/* /usr/local/sbin/; cp -a $$made/lib/* /usr/local/lib/; ldconfig; \
	  cd envs/snapshot/zfs; INSPECT_TEST_OPENZFS=1 ../../../tmp/zfs.test -test.v -test.timeout 35m $(ARGS); \
	  cd ../../node; INSPECT_TEST_NODE_ZFS=1 INSPECT_TEST_OPENZFS=1 ../../tmp/node.test -test.v -test.timeout 10m -test.run TestOnZFS/restores"

# The agent must be on this machine and run jobs as root with raw_exec enabled;
# if it has ACLs (let tokens end soon: token_min_expiration_ttl = "1s"), NOMAD_TOKEN is
# a management token and NOMAD_TOKEN_FILE a file
# with the engine's; INSPECT_TEST_NOMAD_POOL names the pool of its node if that is
# not "default".
test-nomad:
	@test -n "$$NOMAD_ADDR" || { echo "NOMAD_ADDR must be the address of a Nomad agent on this machine, such as http://127.0.0.1:4646"; exit 1; }
	@test -x "$(NOMAD_BIN)" || { echo "NOMAD_BIN must be the path of the nomad program, or nomad in PATH"; exit 1; }
	go test -count 1 -timeout 30m -run 'TestIsAnEngine|TestReal' ./scheduler/nomad
	go test -count 1 -timeout 30m -run 'TestNomad$$' ./cmd/inspect/demo
	go test -count 1 -timeout 30m -v -run 'TestReal' ./cmd/inspect/demo
	NOMAD_BIN=$(NOMAD_BIN) go test -count 1 -timeout 60m -run 'TestNomadAway' ./cmd/inspect/demo
	@$(MAKE) demo ARGS="--engine nomad $(if $(INSPECT_TEST_NOMAD_POOL),--nomad-pool $(INSPECT_TEST_NOMAD_POOL)) $(ARGS)"

# What a user waits for, each as a ratio or against a direct way in one run.
bench:
	@.ci/setup tests
	go test -run '^$$' -bench . -benchtime 50x ./envs/gateway/... ./envs/harness/opencode/...
	go test -run '^$$' -bench True -benchtime 20x ./envs/sandbox
	go test -run '^$$' -bench Restore -benchtime 21x ./envs/snapshot/...

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	$(STATICCHECK) ./...

generate:
	$(SQLC) generate

# What is generated is what the sources say.
drift:
	$(SQLC) diff

clean:
	rm -rf bin
