# The packages under test. Sourced.

# Each checkout has its own directory, so that two checkouts can be tested at the same time.
built=$cache/packages-$(printf %s "$project" | sha256sum | cut -c1-8)
new_version=0.9.2
old_version=0.9.1
next_version=0.9.3

# The old version is built from the last commit that changed the schema or the frames,
# because a program from an earlier commit cannot open this one's database. A commit that only
# moves these files does not count.
old_commit=${OLD_COMMIT:-$(git -C "$project" log -1 --format=%H --diff-filter=M -- \
	store/database/schema.go runner/wire/wire.go)}

# package NAME... sets $NAME_deb, $NAME_rpm or $failpoint_binary, and builds the missing
# files. `run` builds them once for all scenarios.
package() {
	local name
	mkdir -p "$built"
	exec {build_lock}>"$built/lock"
	flock "$build_lock"
	for name in "$@"; do "package_$name"; done
	exec {build_lock}>&-
}

# package_new builds the packages of this tree.
package_new() {
	local dist=$built/new
	[ -n "${PACKAGES_ARE_BUILT:-}" ] && [ -d "$dist" ] || {
		rm -rf "$dist"
		make_packages "$project" "$new_version" "$dist"
	}
	new_deb=$(ls "$dist"/*.deb)
	new_rpm=$(ls "$dist"/*.rpm)
}

# package_old builds the packages of the old version, and keeps them for later runs.
package_old() {
	local commit dist tree
	commit=$(git -C "$project" rev-parse --short=12 "$old_commit")
	dist=$built/old-$commit
	if [ ! -d "$dist" ]; then
		note "building $old_commit as the old version"
		tree=$built/tree-$commit
		rm -rf "$built"/old-* "$built"/tree-*
		mkdir "$tree"
		git -C "$project" archive "$commit" | tar -x -C "$tree"
		make_packages "$tree" "$old_version" "$dist"
		rm -rf "$tree"
	fi
	old_deb=$(ls "$dist"/*.deb)
	old_rpm=$(ls "$dist"/*.rpm)
}

# package_next builds the packages of this tree with a runner protocol whose version is one
# higher. Changes of the protocol only add to it, so both sides only have to accept
# the other number.
package_next() {
	local dist=$built/next tree=$built/tree-next
	[ -n "${PACKAGES_ARE_BUILT:-}" ] && [ -d "$dist" ] || {
		rm -rf "$dist" "$tree"
		mkdir "$tree"
		(cd "$project" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read) | tar -x -C "$tree"
		perl -pi -e 's/^(const ProtocolVersion = )(\d+)/$1 . ($2 + 1)/e and $n++; END { $n == 1 or die }' "$tree/runner/wire/wire.go"
		make_packages "$tree" "$next_version" "$dist"
		rm -rf "$tree"
	}
	next_deb=$(ls "$dist"/*.deb)
}

# package_failpoint builds the service of this tree with failpoints.
package_failpoint() {
	failpoint_binary=$built/failpoint
	[ -n "${PACKAGES_ARE_BUILT:-}" ] && [ -e "$failpoint_binary" ] ||
		(cd "$project" && CGO_ENABLED=0 go build -tags failpoint -ldflags "-X github.com/queuectl/queuectl/internal/cli.Version=$new_version" -o "$failpoint_binary" ./cmd/queuectld)
}

# make_packages TREE VERSION DIR builds the packages of a tree.
make_packages() {
	SOURCE_DATE_EPOCH=$(git -C "$project" log -1 --format=%ct) \
		VERSION=$2 DIST=$3.making ARCHES=amd64 FORMATS='deb rpm' "$1/packaging/build" >"$built/log" 2>&1 || {
		cat "$built/log"
		return 1
	}
	mv "$3.making" "$3"
}
