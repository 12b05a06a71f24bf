# A Wine prefix for Go programs, with replacements for functions that Wine 8 lacks.
# Sourced; $work is the directory of this run.

export WINEPREFIX=$work/prefix WINEARCH=win64 WINEDEBUG=-all DISPLAY= WINEDLLOVERRIDES='mscoree,mshtml='
c=$WINEPREFIX/drive_c
holder=

# make_prefix creates the prefix, with the library that every Go program needs and Wine lacks.
make_prefix() {
	timeout 180 wine wineboot -i >/dev/null 2>&1
	wine reg add 'HKCU\Software\Wine\Drivers' /v Graphics /d null >/dev/null 2>&1 # without a screen, only this driver creates windows
	wineserver -k -w # a program that starts before this has ended would start a second service manager
	(cd "$project" && go run ./packaging/test/wineshim "$c/windows/system32/bcryptprimitives.dll")
}

# as_wine_is makes Go build programs that Wine 8 can run. RemoveAll tries a system call that
# Wine 8 lacks, and recognises only the error of those versions of Windows that lack it. The
# overlay uses the code for those versions directly.
as_wine_is() {
	local file
	file=$(go env GOROOT)/src/internal/syscall/windows/at_windows.go
	sed 's/if TestDeleteatFallback {/if true {/' "$file" >"$work/at_windows.go"
	! cmp -s "$file" "$work/at_windows.go" || { echo "$file no longer contains the code for older versions of Windows"; return 1; }
	printf '{"Replace": {"%s": "%s"}}\n' "$file" "$work/at_windows.go" >"$work/overlay.json"
	export GOFLAGS="$(go env GOFLAGS) -trimpath -overlay=$work/overlay.json"
}

# hold keeps one ordinary program running, because Wine ends its services with the last program.
hold() {
	rm -f "$work/hold"
	mkfifo "$work/hold"
	(exec 3<>"$work/hold" && exec wine cmd.exe /c 'set /p x=' <&3 >/dev/null 2>&1) &
	holder=$!
	within 20 served # until then, no other program may start, because Wine would keep its pipe open
	within 20 windows cmd.exe /c exit
}
served() { [ -n "$(processes 'services\.exe')" ]; }

# let_go ends all programs in the prefix, and writes the registry to its files.
let_go() {
	wineserver -k -w 2>/dev/null || true
	[ -z "$holder" ] || wait "$holder" 2>/dev/null || true
	holder=
}

# programs builds the programs that black-box tests drive, with and without failpoints, and
# posix, the shell of their jobs.
programs() {
	local tag
	GOOS=windows CGO_ENABLED=0 go build -o "$work/bin/posix/sh.exe" ./test/posix || return 1
	for tag in '' failpoint; do
		GOOS=windows CGO_ENABLED=0 go build -tags "$tag" -o "$work/bin/plain$tag/" ./cmd/... || return 1
	done
	export QUEUECTL_TEST_BIN=Z:${work//\//\\}\\bin
}

# windows WORD... runs a program in the prefix and returns the low byte of its exit code. The
# output goes through a file, because Wine's own services, which the first program starts,
# would keep a pipe open.
windows() {
	local code=0
	timeout "${SECONDS_AT_MOST:-60}" wine "$@" </dev/null >"$work/said" 2>&1 || code=$?
	tr -d '\r' <"$work/said"
	return "$code"
}

# processes REGEX lists the prefix's processes whose command lines match, by their pids on this machine.
processes() {
	local pid
	for pid in $(pgrep -f -- "$1"); do
		! grep -zqxF "WINEPREFIX=$WINEPREFIX" "/proc/$pid/environ" 2>/dev/null || echo "$pid"
	done
}

# no_process REGEX succeeds if no process matches, and otherwise prints those that do.
no_process() {
	local pids
	pids=$(processes "$1")
	[ -z "$pids" ] || { ps -o pid=,args= -p "${pids//$'\n'/,}"; return 1; }
}
