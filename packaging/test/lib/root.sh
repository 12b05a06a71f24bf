# A Debian root with systemd, made once and kept below $TMPDIR. Sourced.

cache=${TMPDIR:-/tmp}/queuectl-system-test
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")

# jq reads the program's JSON, rpm installs the .rpm, and strace helps to find the reason of
# a failure.
root_packages=systemd,systemd-sysv,dbus,libpam-systemd,procps,iproute2,jq,rpm,strace

# needs PACKAGE... installs the missing packages on this machine.
needs() {
	local package lock missing=()
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
	done
	[ "${#missing[@]}" -gt 0 ] || return 0
	note "installing ${missing[*]}"
	exec {lock}>"${TMPDIR:-/tmp}/queuectl-needs.lock"
	flock "$lock" # two scripts may run this at the same time, and apt-get update does not wait for a lock
	apt_install "${missing[@]}" || {
		note 'the packages could not be installed; it is tried once more'
		dpkg --configure -a >/dev/null # apt-get refuses to work after an interrupted dpkg
		apt_install "${missing[@]}"
	}
	exec {lock}>&-
}

apt_install() {
	apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
		--no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

# make_root sets $root to the directory of the root. The name contains a hash of the inputs,
# and the directory gets this name when it is complete.
make_root() {
	local mirror
	mkdir -p "$cache"
	root=$cache/root-$(cat "${BASH_SOURCE[0]}" /etc/debian_version | sha256sum | cut -c1-12)
	exec {root_lock}>"$cache/root.lock"
	flock "$root_lock"
	if [ ! -d "$root" ]; then
		note "making a Debian root in $root"
		find "$cache" -maxdepth 1 -name 'root-*' -mtime +7 -exec rm -rf {} +
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 'Component: main' | head -n 1)
		mmdebstrap --quiet --mode=root --variant=minbase --include="$root_packages" \
			--dpkgopt='path-exclude=/usr/share/locale/*' \
			"$suite" "$root.making" "deb $mirror $suite main" >"$cache/root.log" 2>&1 || {
			tail -n 20 "$cache/root.log"
			rm -rf "$root.making"
			return 1
		}
		prepare_root "$root.making"
		mv "$root.making" "$root"
	fi
	touch "$root"
	exec {root_lock}>&-
}

# prepare_root configures the root so that it boots in half a second and without a network.
prepare_root() {
	local unit
	rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
	echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/test"
	rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
	: >"$1/etc/apt/sources.list"
	: >"$1/etc/machine-id"
	echo box >"$1/etc/hostname"
	echo '127.0.0.1 localhost box' >"$1/etc/hosts"
	for unit in systemd-timesyncd.service systemd-networkd-wait-online.service systemd-firstboot.service \
		apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
		fstrim.timer getty@tty1.service console-getty.service getty-static.service; do
		ln -sf /dev/null "$1/etc/systemd/system/$unit"
	done
	mkdir -p "$1/etc/systemd/journald.conf.d" "$1/var/log/journal"
	printf '[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\nSystemMaxUse=200M\n' >"$1/etc/systemd/journald.conf.d/test.conf"
	# Units of a test must not wait 90 s for a device that never appears.
	mkdir -p "$1/etc/systemd/system.conf.d"
	printf '[Manager]\nDefaultDeviceTimeoutSec=5s\n' >"$1/etc/systemd/system.conf.d/test.conf"
}
