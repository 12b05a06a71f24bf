# Runs tests as Windows programs, two at a time: those of all packages except the packages below
# $WITHOUT, or only the tests of $PACKAGES that match $RUN. If $ONLY_WINDOWS is set, packages that
# contain no file for Windows alone are left out. Sourced by packaging/test/wine.
mkdir "$work/tests" "$work/logs"
unset QUEUECTL_REQUIRE # it lists programs that only Linux has

# packages lists the packages with tests for Windows that are not in not-under-wine.txt.
packages() {
	local name dir
	GOOS=windows go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
		while read -r name dir; do
			[ -z "${ONLY_WINDOWS:-}" ] || compgen -G "$dir/*_windows*.go" >/dev/null || continue
			name=$(realpath --relative-to="$project" "$dir")
			[[ -n ${WITHOUT:-} && $name == "$WITHOUT"* ]] || grep -q "^$name	" packaging/test/not-under-wine.txt || echo "$name"
		done
}

# run_tests PACKAGE [REGEXP] runs the tests that match, writes a log, and prints the result.
run_tests() {
	local log=$work/logs/${1//\//-} began=$EPOCHREALTIME code=0 ms
	(cd "$project/$1" && timeout 1500 wine "$work/tests/${1//\//-}.test.exe" -test.v -test.parallel=4 -test.timeout=24m -test.run="${2:-${RUN:-.}}") </dev/null >"$log" 2>&1 || code=$?
	ms=$(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000))
	if [ "$code" = 0 ]; then
		printf 'ok   %-24s %3d.%d s, %d tests, %d skipped\n' "$1" $((ms / 1000)) $((ms % 1000 / 100)) \
			"$(grep -c -- '^--- PASS' "$log")" "$(grep -c -- '^ *--- SKIP' "$log")"
	else
		printf 'FAIL %-24s %3d.%d s, exit code %d\n' "$1" $((ms / 1000)) $((ms % 1000 / 100)) "$code"
		{ grep -E -B20 -A30 '^ *--- FAIL|^panic:|^fatal error:' "$log" || tail -n 30 "$log"; } | head -n 200 | sed 's/^/     | /'
		return 1
	fi
}

if [ -n "${PACKAGES:-}" ]; then
	read -ra found <<<"$PACKAGES"
else
	mapfile -t found < <(packages)
	[ "${#found[@]}" -gt 10 ] || { echo 'found too few packages with tests'; exit 1; }
fi
printf '%s\n' "${found[@]}" | work=$work GOOS=windows CGO_ENABLED=0 xargs -P 2 -n 1 bash -c \
	'go test -vet=off -c -o "$work/tests/${0//\//-}.test.exe" "./$0" || exit 255' || { echo 'a test program was not built'; exit 1; }
[[ " ${found[*]} " != *' test/'* ]] || programs
printf '     built in %d s\n' "$SECONDS"
# The packages that take longest start first. The failed tests run once more, alone,
# because some fail under Wine only on a busy machine.
export QUEUECTL_WALKS=2 # fewer random walks: the rules are the same on Windows, and Linux tests them with more walks
running=0
: >"$work/failed"
for package in store/engine store/sqlite test/cli test/runner test/durability $(printf '%s\n' "${found[@]}"); do
	[ -e "$work/tests/${package//\//-}.test.exe" ] && [ ! -e "$work/logs/${package//\//-}" ] || continue
	: >"$work/logs/${package//\//-}"
	{ run_tests "$package" || echo "$package" >>"$work/failed"; } &
	running=$((running + 1))
	[ "$running" -lt 2 ] || { wait -n; running=$((running - 1)); }
done
wait
bad=0
printf "     skipped tests by reason:\n"
.ci/skipped "$work"/logs/* | sed "s/^/     /"
for package in $(<"$work/failed"); do
	names=$(sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p' "$work/logs/${package//\//-}" | tr -d '\r' | paste -sd '|')
	! grep -qE '^panic:|^fatal error:' "$work/logs/${package//\//-}" || names=
	echo "$package failed; running it once more: ${names:-all tests}"
	run_tests "$package" "${names:+^($names)$}" || bad=1
done
exit "$bad"
