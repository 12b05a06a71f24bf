# Sourced: a skip stands in test/skips.txt as: name, reason, what replaces it.

# check_skips LOG fails if `go test -v` skipped a test that stands there not.
check_skips() {
	local name wrong=0
	for name in $(sed -n 's/^ *--- SKIP: \([^ ]*\).*/\1/p' "$1" | tr -d '\r' | sort -u); do
		grep -q "^$name	" test/skips.txt || { echo "$name was skipped and does not stand in test/skips.txt"; wrong=1; }
	done
	return "$wrong"
}
