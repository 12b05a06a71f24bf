# Everything here needs Go alone, but for race (cgo and a C compiler) and packages.
GO      ?= go
TARGETS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
export CGO_ENABLED = 0

.PHONY: build install demo test test-long race check check-source check-targets bench bench-smoke bench-postgres pages packages system-test wine-test compose-test kill-loop pauses gates duties walks server-suite campaign apart abuse fuzz peers power-cuts ci images release-notes repository clean

build:
	$(GO) build -trimpath -o ./ ./cmd/...

# Installs what `make build` has built, with manual pages and completions.
PREFIX ?= /usr/local
install:
	@test -x queuectl -a -x queuectld || { echo "nothing is built yet; run: make build" >&2; exit 1; }
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1" \
		"$(DESTDIR)$(PREFIX)/share/bash-completion/completions" \
		"$(DESTDIR)$(PREFIX)/share/zsh/site-functions" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d"
	install -m 755 queuectl queuectld "$(DESTDIR)$(PREFIX)/bin/"
	./queuectl man "$(DESTDIR)$(PREFIX)/share/man/man1"
	./queuectl completion bash >"$(DESTDIR)$(PREFIX)/share/bash-completion/completions/queuectl"
	./queuectl completion zsh >"$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_queuectl"
	./queuectl completion fish >"$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/queuectl.fish"

# A real batch of jobs, end to end.
demo:
	$(GO) run ./test/demo

# Most tests wait for something most of the time: half as many packages again as processors fill these.
PACKAGES_AT_ONCE = $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2))

# All tests that end within seconds and need only Go: at most three minutes on two processors. vet is
# part of make check.
test:
	QUEUECTL_WALKS=2 $(GO) test -short -vet=off -timeout 20m -p $(PACKAGES_AT_ONCE) $(TESTFLAGS) ./...

# All tests, also those that take long or start a PostgreSQL server.
test-long:
	$(GO) test -vet=off -timeout 20m -p $(PACKAGES_AT_ONCE) $(TESTFLAGS) ./...

# What the whole program's tests drive is another process, which the detector does not see,
# and SQLite's memory is not Go's: to watch its code costs two thirds of the time for nothing.
# The engine is watched over SQLite alone: over a server it is the same.
# A random walk takes its steps one by one, so two of them are enough. The tests of the whole tree in
# this directory, and the model of the store, which is no part of the product, are left out.
race:
	QUEUECTL_WALKS=2 CGO_ENABLED=1 $(GO) test -vet=off -timeout 30m $(TESTFLAGS) -race -skip 'OfAServer$$|/^server$$' -gcflags='modernc.org/...=-race=false' $$($(GO) list ./... | grep -v -e /queuectl/test/ -e '/queuectl$$' -e /memstore)

# gofmt, vet and staticcheck, actionlint without the linters of other languages that a machine may have,
# the tests of the whole tree (import law, words, sizes), generated pages, and the other targets.
check: check-source check-targets

check-source:
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	$(GO) vet -trimpath ./...
	$(GO) vet -trimpath -tags failpoint ./...
	cd bench/postgres && $(GO) vet .
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	$(GO) tool -modfile=tools/go.mod actionlint -shellcheck= -pyflakes= .github/workflows/*
	$(GO) test .
	$(GO) run ./internal/pages -check

# Vet and build for six targets, and staticcheck for Windows. It compiles as for packages, which then find
# it done.
check-targets:
	@for t in $(TARGETS); do \
		echo "vet and build for $$t"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) vet -trimpath ./... || exit 1; \
		GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build -trimpath -o /dev/null ./cmd/... || exit 1; \
	done
	GOOS=windows "$$($(GO) tool -modfile=tools/go.mod -n staticcheck)" ./...

# The files that are generated from the program's tables.
pages:
	$(GO) run ./internal/pages

# .deb, .rpm, Arch, .msi and .zip packages, checksums and bills of materials in dist; what
# it needs for the MSI, and reads from the environment, stands in packaging/build.
packages:
	packaging/build

# The packages in a container with a booted systemd, as root; TESTFLAGS names scenarios.
system-test:
	packaging/test/run $(TESTFLAGS)

# The suite, the MSI and the service under Wine; TESTFLAGS names parts: suite, install, service,
# or kills, which are 200 of the service.
wine-test:
	packaging/test/wine $(TESTFLAGS)

# The compose file's server and nodes, in podman's containers, as root.
compose-test:
	packaging/test/compose

# Speed compared with the machine's own limits; BENCHFLAGS="-as daemon -only drain,start" is that of
# root's runner, as root.
bench:
	$(GO) run ./bench $(BENCHFLAGS)

# Every measurement of both benchmarks once and as small as possible, to see that they work: a minute at most.
bench-smoke:
	timeout 120 $(GO) run ./bench -smoke >/dev/null
	cd bench/postgres && npm install --silent --no-package-lock && \
		QUEUECTL_BENCH_JOBS=200 QUEUECTL_BENCH_NODES=2 QUEUECTL_BENCH_DEPTH=2000 QUEUECTL_BENCH_DRAINED=1000 QUEUECTL_BENCH_WAKEUPS=5 \
		$(GO) test -count=1 -timeout 2m .

# The queue on a PostgreSQL server, compared with River, graphile-worker and pg-boss, and as deep as 10,000,000 jobs; needs npm too.
bench-postgres:
	cd bench/postgres && npm install --silent --no-package-lock && \
		QUEUECTL_BENCH_ROUNDS=5 QUEUECTL_BENCH_DEPTH=10000000 $(GO) test -count=1 -v -timeout 2h .

# 200 kills of the service; tests run a short form.
kill-loop:
	QUEUECTL_KILLS=200 $(GO) test ./test/durability -run TestServiceKilled -count=1 -v -timeout 20m

# 1,000 pauses of trees that fork all the time, by signals and, as root, by control groups; tests
# do 20.
pauses:
	QUEUECTL_PAUSES=1000 $(GO) test ./test/runner -run '^TestPausedForkingTreesStop$$' -count=1 -v -timeout 2h

# Rates, units and weights by the contract's figures, over 20 kills, and a kill at each commit of what releases,
# replaces, fires and has hooks; tests run a short form.
gates:
	QUEUECTL_SOAK=1 $(GO) test ./test/jobs ./test/durability -run '^(TestResourceUnitsAreExclusive|TestWeightsShareTheStarts|TestRateOverKills|TestKilledAtEachCommit)$$' -count=1 -v -timeout 60m

# What a step of each periodic duty reads with 1,000,000 ended jobs, compared with 10,000; tests compare 100,000.
duties:
	QUEUECTL_ENDED=1000000 $(GO) test ./store/engine -run '^TestDutiesReadAsMuchWhateverIsStored$$' -count=1 -v -timeout 20m

# The store's suite, and random walks compared with the model, on a PostgreSQL server that the tests start.
server-suite:
	QUEUECTL_SERVER=1 $(GO) test ./store/engine -run 'OfAServer$$|^TestCacheDeltasKeepNodesEqual$$' -count=1 -timeout 60m

# 1,000 random walks through the engine, compared with the model; make test takes 2, make test-long 8, CI 20,
# and 100 at night.
walks:
	QUEUECTL_WALKS=1000 $(GO) test ./store/engine -run '^TestWalks$$' -count=1 -timeout 2h

# Half an hour of faults, as root for a small disk that fills up; tests run ten seconds, CI two
# minutes.
campaign:
	QUEUECTL_CAMPAIGN=30m $(GO) test ./test/durability -run '^TestCampaign$$' -count=1 -v -timeout 2h

# Two hours of three nodes that are cut off, stopped and killed, on a server that crashes and fails over, as root; CI runs three
# minutes.
apart:
	QUEUECTL_APART=2h $(GO) test ./test/cluster -run '^TestNodesSurvivePartitionsAndCrashes$$' -count=1 -v -timeout 3h

# Five minutes of two users who attack a service while a third one measures, as root; tests run
# five seconds, in which all but the percentiles is looked at.
abuse:
	QUEUECTL_ABUSE=5m $(GO) test ./test/access -run '^TestAbuse$$' -count=1 -v -timeout 20m

# Fuzzing, for FUZZTIME each; tests run what was found before.
FUZZTIME ?= 5m
fuzz:
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do \
		for name in $$(sed -nE 's/^func (Fuzz[A-Za-z]*)\(.*/\1/p' "$$file"); do \
			$(GO) test "$$(dirname "$$file")" -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

# 2,000 power cuts, as root; tests run 60.
power-cuts:
	QUEUECTL_CUTS=2000 $(GO) test ./test/durability -run TestPowerCut -count=1 -v -timeout 60m

# A private run of 2,000 commands, compared with xargs and GNU parallel, killed at half; tests
# run a short form.
peers:
	QUEUECTL_PEERS=2000 $(GO) test ./test/cli -run TestPrivateRunComparedWithPeers -count=1 -v

# All suites; it installs what they need, as root.
ci:
	.ci/run

# The container images queuectl and queuectl-shared, with podman.
images:
	podman build -f packaging/Containerfile --build-arg VERSION=$$(packaging/version) -t queuectl .
	podman build -f packaging/Containerfile --build-arg VERSION=$$(packaging/version) --target shared -t queuectl-shared .

# The changes of the version that is built, from CHANGELOG.md.
release-notes:
	@$(GO) run ./internal/release notes CHANGELOG.md "$$(packaging/version)"

# An apt and a dnf repository of the packages in dist, in dist/repository, for a web server that offers it at URL.
repository:
	@test -n "$(URL)" || { echo "name the address: make repository URL=https://packages.example.org" >&2; exit 1; }
	packaging/repository dist dist/repository "$(URL)"

clean:
	rm -rf queuectl queuectld dist
