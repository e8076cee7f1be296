# shellcheck shell=bash
# Debian releases in folders outside the checkout, made by debootstrap and used
# again by every checkout of the machine.
#
#   release_make RELEASE [PACKAGE...]   sees that $IDEM_RELEASES/RELEASE is there and whole
#   release_settings ROOT               lets it reach what this machine reaches
#   release_copy RELEASE ROOT           a fresh copy with settings, git and make: a bare machine
#   release_clone ROOT FOLDER           what is committed here, in that folder of it
#   inside ROOT COMMAND...              runs it as root in there
#   releases_lock                       until the script ends, no other run uses them
#
# A release is made under another name and moved into place when complete, so a
# folder that exists is a whole one.
#
# Processes and mounts of a release live in namespaces of their own and vanish
# with the command that needed them; so removing a folder is always safe.

IDEM_RELEASES=${IDEM_RELEASES:-/var/tmp/idempotency-releases}

releases_lock() {
	am_root || die "only root can enter a Debian release"
	has debootstrap || step "installing debootstrap" apt_fetch debootstrap ||
		die "could not install debootstrap"
	mkdir -p "$IDEM_RELEASES/archives/partial"
	exec 7>"$IDEM_RELEASES/lock"
	if ! flock -n 7; then
		say "waiting for another run in $IDEM_RELEASES"
		flock 7
	fi
}

# inside FOLDER COMMAND...: packages it fetches are there the next time.
inside() {
	local root=$1
	shift
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare --mount --pid --fork --kill-child bash -euc '
		root=$1; archives=$2; shift 2
		mount --rbind /dev "$root/dev"
		mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
		mount -t proc proc "$root/proc"
		mount --bind "$archives" "$root/var/cache/apt/archives"
		# the shell stays, as the first process, to collect the dead
		chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
			NODE_EXTRA_CA_CERTS=/etc/ssl/machine.crt "$@"
		exit
	' inside "$root" "$IDEM_RELEASES/archives" "$@" </dev/null 7>&- 9>&-
}

# --- making one ---------------------------------------------------------------

release_make() {
	local release=$1 root=$IDEM_RELEASES/$1
	if [ -d "$root" ] && ! healthy "$root"; then
		say "$root is damaged: making it again"
		rm -rf "$root"
	fi
	[ -d "$root" ] || step "making Debian $release in $root" bootstrap "$@"
}

healthy() { inside "$1" sh -c 'apt-get --version && dpkg --audit && test -z "$(dpkg --audit)"' >/dev/null 2>&1; }

bootstrap() { retry 3 bootstrap_into "$IDEM_RELEASES/$1.half" "$@" && mv "$IDEM_RELEASES/$1.half" "$IDEM_RELEASES/$1"; }

bootstrap_into() {
	local half=$1 release=$2
	shift 2
	rm -rf "$half"
	debootstrap --variant=minbase ${1:+--include="$(IFS=,; echo "$*")"} \
		"$release" "$half" "$(mirror)" "$(script_for "$release")"
}

# debootstrap of an older Debian does not know the newest release by name; they
# are all made as sid is.
script_for() {
	if [ -e "/usr/share/debootstrap/scripts/$1" ]; then
		echo "$1"
	else
		echo sid
	fi
}

mirror() {
	local sites
	sites=$(apt-get indextargets --format '$(SITE)' | sort -u)
	grep -m1 -E '/debian/?$' <<<"$sites" || head -1 <<<"$sites"
}

# Names, proxies, clocks and certificates as on this machine.
release_settings() {
	mkdir -p "$1/etc/ssl" &&
		cp /etc/resolv.conf "$1/etc/resolv.conf" &&
		{ cat /etc/ssl/certs/ca-certificates.crt 2>/dev/null || true; } >"$1/etc/ssl/machine.crt" &&
		apt-config dump | { grep -E '^Acquire::(http|https|Check|Retries)' || true; } >"$1/etc/apt/apt.conf.d/99machine"
}

# --- a bare machine -----------------------------------------------------------

# What killed runs left goes: ROOT is a name with the number of the process.
release_copy() {
	release_make "$1" git make || return
	rm -rf "${2%.*}".*
	step "copying it" cp -a "$IDEM_RELEASES/$1" "$2" && release_settings "$2"
}

release_clone() {
	mkdir -p "$(dirname "$1$2")"
	GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
		git clone -q --no-hardlinks "$IDEM_TOP" "$1$2"
}
