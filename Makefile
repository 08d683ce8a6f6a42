# The two commands of the README, and what they stand on.
#   make demo    a label becomes a verified draft pull request, on this machine
#   make test    every test; sets up what it needs itself
# Options of the demo: make demo ARGS="--keep"

export CGO_ENABLED := 0
BIN := bin/inspect
SQLC := go tool -modfile=tools/go.mod sqlc
STATICCHECK := go tool -modfile=tools/go.mod staticcheck

.PHONY: setup build demo test bench lint generate drift clean

setup:
	@.ci/setup

build:
	@mkdir -p bin
	go build -o $(BIN) ./cmd/inspect

demo: setup build
	@$(BIN) demo $(ARGS)

test:
	@.ci/setup tests
	go test -timeout 15m ./...

# What a user waits for, each as a ratio or against a direct way in one run.
bench:
	@.ci/setup tests
	go test -run '^$$' -bench . -benchtime 50x ./envs/gateway/... ./envs/harness/opencode/...

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
