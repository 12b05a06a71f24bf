# A Debian root without systemd, made once and kept below $TMPDIR. Sourced.

# plain_root sets $plain to its directory.
plain_root() {
	local mirror log
	plain=$cache/plain-$(cat /etc/debian_version)
	[ ! -d "$plain" ] || return 0
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 'Component: main' | head -n 1)
	rm -rf "$plain.making"
	log=$cache/plain.log
	mmdebstrap --quiet --mode=root --variant=minbase --include=rpm "$suite" "$plain.making" "deb $mirror $suite main" >"$log" 2>&1 || { cat "$log"; return 1; }
	mv "$plain.making" "$plain"
}
