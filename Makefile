# Most targets need only Go. race also needs cgo and a C compiler, and packages needs the tools in
# packaging/build.
GO      ?= go
TARGETS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
export CGO_ENABLED = 0

.PHONY: build install demo test test-long race check check-source check-targets check-windows bench bench-smoke bench-postgres pages packages system-test wine-test compose-test kill-loop pauses gates duties walks server-suite campaign apart abuse fuzz peers power-cuts ci images release-notes repository clean

build:
	$(GO) build -trimpath -o ./ ./cmd/...

# Installs the programs that `make build` has built, with manual pages and completions.
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

# Runs a batch of jobs on a temporary queue, from enqueue to end.
demo:
	$(GO) run ./test/demo

# With GOGC=400, the compiler takes a fifth less processor time and a third more memory (1.1 GB for the largest
# package). The tests themselves run with Go's default, as users run the programs.
TEST = GOGC=400 $(GO) test -exec 'env -u GOGC'

# PACKAGES_AT_ONCE is two packages per processor, because tests often wait. LONG_PACKAGES_AT_ONCE is only 1.5,
# because some long tests check how soon requests are served.
PACKAGES_AT_ONCE = $$(($$(getconf _NPROCESSORS_ONLN) * 2))
LONG_PACKAGES_AT_ONCE = $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2))

# LONGEST_FIRST lists the packages whose tests take longest. Go begins with the first packages of a list, so that
# no long test is left to run alone at the end. Only two packages below test/ run at a time, so other packages
# stand between them.
LONGEST_FIRST = ./test/jobs ./test/cli ./store/engine ./runner/process ./test/durability ./control ./store/sqlite \
	./test/runner ./worker ./service ./test/cluster ./store/postgres ./test/page ./store/reads ./test/access ./test/api

# Runs all tests that end within seconds and need only Go. On two processors it takes three minutes, or
# more than four if the dependencies are not compiled yet. `make check` runs vet.
test:
	QUEUECTL_WALKS=2 $(TEST) -short -vet=off -timeout 20m -p $(PACKAGES_AT_ONCE) $(TESTFLAGS) $(LONGEST_FIRST) ./...

# Runs all tests, including those that take long or start a PostgreSQL server.
test-long:
	$(TEST) -vet=off -timeout 20m -p $(LONG_PACKAGES_AT_ONCE) $(TESTFLAGS) ./...

# Runs tests under the race detector, except those for which it is useless. The tests below test/ drive
# programs in other processes, which the detector does not see. SQLite's code does not use Go's memory,
# so watching the code would only triple the time. The engine is tested on SQLite only, because it
# behaves the same on a server. Two random walks are enough, because a walk takes its steps one by one.
# The tests in this directory check sources, and the store's model is not part of the product. Packages that
# start no goroutine and do not import sync are left out too.
race:
	QUEUECTL_WALKS=2 CGO_ENABLED=1 $(TEST) -vet=off -timeout 30m $(TESTFLAGS) -race -skip '^(TestPostgresEngineMeetsStoreContract|TestRandomWalksOnPostgresMatchModel)$$|/^server$$' -gcflags='modernc.org/...=-race=false' \
		$$(grep -rlE --include='*.go' '^	*go [a-zA-Z.]+\(|"sync(/atomic)?"' . | xargs -n 1 dirname | sort -u | \
			grep -v -e '^\./test/' -e '^\./bench/postgres' -e '^\./tools' -e '^\.$$' -e /memstore)

# Checks the sources: gofmt, vet, staticcheck, actionlint (without its linters for other languages), the
# tests of the whole tree (import law, words, sizes), generated pages, and builds for the other systems.
check: check-source check-targets check-windows

check-source:
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	$(GO) vet -trimpath ./...
	$(GO) vet -trimpath -tags failpoint ./...
	cd bench/postgres && $(GO) vet .
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	$(GO) tool -modfile=tools/go.mod actionlint -shellcheck= -pyflakes= .github/workflows/*
	$(GO) test .
	$(GO) run ./internal/pages -check

# Runs vet and build for six systems. The compiler flags are those of `make packages`, which can then reuse
# the results. For macOS, which has no package, the compiler does not optimize, which is faster.
check-targets:
	@for t in $(TARGETS); do \
		echo "vet and build for $$t"; \
		case $$t in darwin/*) flags='-gcflags=all=-N -l';; *) flags=-trimpath;; esac; \
		export GOGC=400 GOOS=$${t%/*} GOARCH=$${t#*/}; \
		$(GO) vet -trimpath "$$flags" ./... || exit 1; \
		$(GO) build -trimpath "$$flags" -o /dev/null ./cmd/... || exit 1; \
	done

# Runs staticcheck for Windows. CI does so at night.
check-windows:
	GOOS=windows "$$($(GO) tool -modfile=tools/go.mod -n staticcheck)" ./...

# Writes the files that are generated from the program's tables.
pages:
	$(GO) run ./internal/pages

# Builds .deb, .rpm, Arch, .msi and .zip packages, checksums and bills of materials in dist.
# packaging/build names the tools that the MSI needs, and the environment variables.
packages:
	packaging/build

# Tests the packages in a container with a booted systemd. It needs root. TESTFLAGS names scenarios.
system-test:
	packaging/test/run $(TESTFLAGS)

# Tests the suite, the MSI and the service under Wine. TESTFLAGS names parts: suite, install, service,
# or kills (200 kills of the service).
wine-test:
	packaging/test/wine $(TESTFLAGS)

# Tests the server and the nodes of the compose file in containers of podman. It needs root.
compose-test:
	packaging/test/compose

# Compares the speed with the limits of the machine. BENCHFLAGS="-as daemon -only drain,start" measures
# the runner of root; it needs root.
bench:
	$(GO) run ./bench $(BENCHFLAGS)

# Takes each measurement of both benchmarks once and as small as possible, to check that the benchmarks
# work. It takes at most a minute on an idle machine.
bench-smoke:
	timeout 240 $(GO) run ./bench -smoke >/dev/null
	cd bench/postgres && npm install --silent --no-package-lock && \
		QUEUECTL_BENCH_JOBS=200 QUEUECTL_BENCH_NODES=2 QUEUECTL_BENCH_DEPTH=2000 QUEUECTL_BENCH_DRAINED=1000 QUEUECTL_BENCH_WAKEUPS=5 \
		$(GO) test -count=1 -timeout 4m .

# Compares the queue on a PostgreSQL server with River, graphile-worker and pg-boss, and measures it
# with up to 10,000,000 waiting jobs. It needs npm.
bench-postgres:
	cd bench/postgres && npm install --silent --no-package-lock && \
		QUEUECTL_BENCH_ROUNDS=5 QUEUECTL_BENCH_DEPTH=10000000 $(GO) test -count=1 -v -timeout 2h .

# Kills the service 200 times. The tests do so 20 times.
kill-loop:
	QUEUECTL_KILLS=200 $(GO) test ./test/durability -run TestServiceKilled -count=1 -v -timeout 20m

# Pauses process trees that fork continuously 1,000 times, by signals and, as root, by control groups.
# The tests do so 20 times.
pauses:
	QUEUECTL_PAUSES=1000 $(GO) test ./test/runner -run '^TestPausedForkingTreesStop$$' -count=1 -v -timeout 2h

# Tests rate limits, resource units and weights during 20 kills, and kills the service at each commit of
# a scenario with dependencies, replacements, schedules and hooks. The tests run a short form.
gates:
	QUEUECTL_SOAK=1 $(GO) test ./test/jobs ./test/durability -run '^(TestResourceUnitsAreExclusive|TestWeightsShareTheStarts|TestRateOverKills|TestKilledAtEachCommit)$$' -count=1 -v -timeout 60m

# Checks that a step of each periodic duty reads no more with 1,000,000 ended jobs than with 10,000. The
# tests use 100,000.
duties:
	QUEUECTL_ENDED=1000000 $(GO) test ./store/engine -run '^TestDutiesReadAsMuchWhateverIsStored$$' -count=1 -v -timeout 20m

# Runs the store's suite, and random walks compared with the model, on a PostgreSQL server that the
# tests start.
server-suite:
	QUEUECTL_SERVER=1 $(GO) test ./store/engine -run '^(TestPostgresEngineMeetsStoreContract|TestRandomWalksOnPostgresMatchModel|TestCacheDeltasKeepNodesEqual)$$' -count=1 -timeout 60m

# Takes 1,000 random walks through the engine and compares them with the model. `make test` takes 2,
# `make test-long` 8, and CI 20, or 100 at night.
walks:
	QUEUECTL_WALKS=1000 $(GO) test ./store/engine -run '^TestWalks$$' -count=1 -timeout 2h

# Injects faults for half an hour. With root, they include a small disk that fills up. The tests do so
# for ten seconds, and CI for two minutes.
campaign:
	QUEUECTL_CAMPAIGN=30m $(GO) test ./test/durability -run '^TestCampaign$$' -count=1 -v -timeout 2h

# Cuts off, stops and kills three nodes for two hours, on a server that crashes and fails over. It needs
# root. CI does so for three minutes.
apart:
	QUEUECTL_APART=2h $(GO) test ./test/cluster -run '^TestNodesSurvivePartitionsAndCrashes$$' -count=1 -v -timeout 3h

# Lets two users attack a service for five minutes, while a third one measures it. It needs root. The
# tests do so for five seconds, without checking percentiles.
abuse:
	QUEUECTL_ABUSE=5m $(GO) test ./test/access -run '^TestAbuse$$' -count=1 -v -timeout 20m

# Runs each fuzz test for FUZZTIME. The tests only run the inputs that were found earlier.
FUZZTIME ?= 5m
fuzz:
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do \
		for name in $$(sed -nE 's/^func (Fuzz[A-Za-z]*)\(.*/\1/p' "$$file"); do \
			$(GO) test "$$(dirname "$$file")" -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

# Simulates 2,000 power cuts. It needs root. The tests simulate 60.
power-cuts:
	QUEUECTL_CUTS=2000 $(GO) test ./test/durability -run TestPowerCut -count=1 -v -timeout 60m

# Compares a private run of 2,000 commands, which is killed halfway, with xargs and GNU parallel. The
# tests run a short form.
peers:
	QUEUECTL_PEERS=2000 $(GO) test ./test/cli -run TestPrivateRunComparedWithPeers -count=1 -v

# Runs all suites, and installs the packages that they need, which requires root.
ci:
	.ci/run

# Builds the container images queuectl and queuectl-shared with podman.
images:
	podman build -f packaging/Containerfile --build-arg VERSION=$$(packaging/version) -t queuectl .
	podman build -f packaging/Containerfile --build-arg VERSION=$$(packaging/version) --target shared -t queuectl-shared .

# Prints the changes of the present version, from CHANGELOG.md.
release-notes:
	@$(GO) run ./internal/release notes CHANGELOG.md "$$(packaging/version)"

# Makes an apt and a dnf repository of the packages in dist. A web server can offer the result,
# dist/repository, at URL.
repository:
	@test -n "$(URL)" || { echo "name the address: make repository URL=https://packages.example.org" >&2; exit 1; }
	packaging/repository dist dist/repository "$(URL)"

clean:
	rm -rf queuectl queuectld dist
