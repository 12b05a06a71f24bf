# A Wine prefix that Go programs run in, and what stands in for what Wine 8 lacks.
# Sourced; $work is a folder of this run.

export WINEPREFIX=$work/prefix WINEARCH=win64 WINEDEBUG=-all DISPLAY= WINEDLLOVERRIDES='mscoree,mshtml='
c=$WINEPREFIX/drive_c
holder=

# make_prefix makes it, with the library that Wine lacks and every Go program needs.
make_prefix() {
	timeout 180 wine wineboot -i >/dev/null 2>&1
	wine reg add 'HKCU\Software\Wine\Drivers' /v Graphics /d null >/dev/null 2>&1 # without a screen there are no windows but of this driver
	wineserver -k -w # what begins while this still ends begins a second service manager beside it
	(cd "$project" && go run ./packaging/test/wineshim "$c/windows/system32/bcryptprimitives.dll")
}

# as_wine_is has Go build what Wine 8 can run: RemoveAll asks for what it lacks and does
# not answer as those versions of Windows do that lack it, so their way is taken at once.
as_wine_is() {
	local file
	file=$(go env GOROOT)/src/internal/syscall/windows/at_windows.go
	sed 's/if TestDeleteatFallback {/if true {/' "$file" >"$work/at_windows.go"
	! cmp -s "$file" "$work/at_windows.go" || { echo "$file no longer contains the code for older versions of Windows"; return 1; }
	printf '{"Replace": {"%s": "%s"}}\n' "$file" "$work/at_windows.go" >"$work/overlay.json"
	export GOFLAGS="$(go env GOFLAGS) -trimpath -overlay=$work/overlay.json"
}

# hold keeps one ordinary program running: Wine ends its services with the last.
hold() {
	rm -f "$work/hold"
	mkfifo "$work/hold"
	(exec 3<>"$work/hold" && exec wine cmd.exe /c 'set /p x=' <&3 >/dev/null 2>&1) &
	holder=$!
	within 20 served # nor is another to begin meanwhile, whose pipe Wine would keep
	within 20 windows cmd.exe /c exit
}
served() { [ -n "$(processes 'services\.exe')" ]; }

# let_go ends all that runs in the prefix, and writes the registry to its files.
let_go() {
	wineserver -k -w 2>/dev/null || true
	[ -z "$holder" ] || wait "$holder" 2>/dev/null || true
	holder=
}

# programs are those that black-box tests drive, as somebody with Go has built them; posix
# is the shell of their jobs.
programs() {
	local tag
	GOOS=windows CGO_ENABLED=0 go build -o "$work/bin/posix/sh.exe" ./test/posix || return 1
	for tag in '' failpoint; do
		GOOS=windows CGO_ENABLED=0 go build -tags "$tag" -o "$work/bin/plain$tag/" ./cmd/... || return 1
	done
	export QUEUECTL_TEST_BIN=Z:${work//\//\\}\\bin
}

# windows WORD... runs a program in the prefix; its exit code is the low byte of what it
# ended with. What it says goes through a file: Wine's own services, which the first
# program starts, would keep a pipe open.
windows() {
	local code=0
	timeout "${SECONDS_AT_MOST:-60}" wine "$@" </dev/null >"$work/said" 2>&1 || code=$?
	tr -d '\r' <"$work/said"
	return "$code"
}

# processes REGEX lists the prefix's whose words match, by the pid they have here.
processes() {
	local pid
	for pid in $(pgrep -f -- "$1"); do
		! grep -zqxF "WINEPREFIX=$WINEPREFIX" "/proc/$pid/environ" 2>/dev/null || echo "$pid"
	done
}

# no_process REGEX: there is none, and what there is is shown.
no_process() {
	local pids
	pids=$(processes "$1")
	[ -z "$pids" ] || { ps -o pid=,args= -p "${pids//$'\n'/,}"; return 1; }
}
