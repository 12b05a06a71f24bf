# The output of a scenario: one line for each promise, followed by the details if it does
# not hold. Sourced.

passed=0
failed=0

note() { printf '     %s\n' "$*"; }

# ok PROMISE reports success. bad PROMISE reports a failure, with its details from standard input.
ok() {
	passed=$((passed + 1))
	printf 'ok   %s\n' "$1"
}
bad() {
	failed=$((failed + 1))
	printf 'FAIL %s\n' "$1"
	sed 's/^/     | /' | tail -n "${SEEN_LINES:-25}"
}

# promise TEXT COMMAND... holds if the command succeeds. Otherwise the command's output is shown.
promise() {
	local text=$1 began=$EPOCHREALTIME seen
	shift
	if seen=$("$@" 2>&1); then
		ok "$text$(spent "$began")"
	else
		bad "$text$(spent "$began")" <<<"${seen:-$* printed nothing}"
	fi
}

# spent BEGAN prints the elapsed time if it is at least 2 s.
spent() {
	local ms=$(((${EPOCHREALTIME/[.,]/} - ${1/[.,]/}) / 1000))
	[ "$ms" -lt 2000 ] || printf ' (%d.%d s)' $((ms / 1000)) $((ms % 1000 / 100))
}

# within SECONDS COMMAND... repeats the command until it succeeds. After that time, the
# result of one last attempt counts.
within() {
	local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
	shift
	until "$@" >/dev/null 2>&1; do
		if [ "${EPOCHREALTIME/[.,]/}" -ge "$end" ]; then
			"$@"
			return
		fi
		sleep 0.05
	done
}

# same WANT GOT succeeds if both are equal. says REGEX COMMAND... succeeds if the command's
# output matches.
same() {
	[ "$1" = "$2" ] || {
		printf 'want: %s\ngot:  %s\n' "$1" "$2"
		return 1
	}
}
says() {
	local want=$1 seen
	shift
	seen=$("$@" 2>&1) || true
	printf 'want: %s\ngot:  %s\n' "$want" "$seen"
	grep -Eq -- "$want" <<<"$seen"
}

# refuses COMMAND... succeeds if the command fails.
refuses() {
	local seen
	if seen=$("$@" 2>&1); then
		printf 'the command succeeded, want a failure: %s\n%s\n' "$*" "$seen"
		return 1
	fi
}

# ends CODE REGEX COMMAND... succeeds if the command exits with the code and its output matches.
ends() {
	local want=$1 text=$2 seen code=0
	shift 2
	seen=$("$@" 2>&1) || code=$?
	printf 'want: exit code %s and %s\ngot:  exit code %s and %s\n' "$want" "$text" "$code" "$seen"
	[ "$code" = "$want" ] && grep -Eq -- "$text" <<<"$seen"
}

# summary prints the counts at the end of a scenario and fails if a promise did not hold.
summary() {
	printf '%s: %d ok, %d failed, %d s\n' "${scenario:-all}" "$passed" "$failed" "$SECONDS"
	[ "$failed" = 0 ]
}
