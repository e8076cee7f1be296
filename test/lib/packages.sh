# shellcheck shell=bash
# Installs what a script needs and the machine lacks.
#
# Each need is tested by what is used, not by package names, so that a server
# built from source serves as well as Debian's.  As root on Debian the missing
# packages are installed; otherwise the script stops and names them.

# The majors to look for, best first; IDEM_WANT_MAJOR leaves one.  The oldest
# comes first because it is the one that most people have longest.
wanted_majors() { echo "${IDEM_WANT_MAJOR:-15 16 17 18}"; }

# need_packages GROUP...: groups are build, server, tap, lint, model, node, fuzz, and
# source (to build PostgreSQL itself).
need_packages() {
	local missing
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ "${#missing[@]}" -gt 0 ] || return 0
	if ! am_root || ! command -v apt-get >/dev/null; then
		die "please install first: ${missing[*]} (as root on Debian this script does it itself)"
	fi
	step "asking for package lists" apt_update || die "apt-get update failed"
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	step "installing ${missing[*]}" apt_install "${missing[@]}" ||
		die "could not install ${missing[*]}"
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ "${#missing[@]}" -eq 0 ] || die "still missing after installation: ${missing[*]}"
}

missing_packages() {
	local group
	for group in "$@"; do
		"missing_for_$group"
	done
}

# lacks PACKAGE COMMAND...: names the package if the command fails.
lacks() {
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || echo "$package"
}

has() { command -v "$1" >/dev/null; }

missing_for_build() {
	lacks make has make
	lacks gcc has gcc
	lacks libc6-dev test -e /usr/include/stdio.h
	lacks perl has perl
}

missing_for_server() {
	local config major
	if ! config=$(source_pg_config); then
		major=$(offered_major)
		printf '%s\n' "postgresql-$major" "postgresql-server-dev-$major"
		return
	fi
	major=$(major_of "$config")
	lacks "postgresql-$major" test -x "$("$config" --bindir)/initdb"
	lacks "postgresql-server-dev-$major" test -e "$("$config" --pgxs)"
	lacks "postgresql-server-dev-$major" test -e "$("$config" --includedir-server)/postgres.h"
}

missing_for_tap() {
	local config major
	if config=$(source_pg_config); then
		major=$(major_of "$config")
	else
		major=$(offered_major)
	fi
	lacks "postgresql-$major-pgtap" pgtap_folder "$major" "${config:-}"
	lacks "postgresql-server-dev-$major" test_perl_folder "$major" "${config:-}"
	lacks libipc-run-perl perl -MIPC::Run -e 1
	lacks perl has prove
	lacks python3 has python3
}

missing_for_lint() {
	lacks pg-bsd-indent has pg_bsd_indent
	lacks universal-ctags ctags_is_universal
	lacks shellcheck has shellcheck
}

missing_for_node() {
	lacks nodejs has node
	lacks npm has npm
}

missing_for_fuzz() {
	missing_for_node
	lacks clang has clang
	if has clang; then
		lacks "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" clang_can_fuzz
	fi
}

clang_can_fuzz() {
	echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }' |
		clang -x c -fsanitize=fuzzer,address - -o /dev/null
}

missing_for_model() {
	lacks spin has spin
}

missing_for_source() {
	lacks libreadline-dev test -e /usr/include/readline/readline.h
	lacks zlib1g-dev test -e /usr/include/zlib.h
	lacks libssl-dev test -e /usr/include/openssl/ssl.h
	lacks bzip2 has bzip2
}

ctags_is_universal() { ctags --version 2>/dev/null | grep -q Universal; }

# The first wanted major that apt offers.
offered_major() {
	local major
	for major in $(wanted_majors); do
		if apt-cache show "postgresql-server-dev-$major" >/dev/null 2>&1; then
			echo "$major"
			return
		fi
	done
	wanted_majors | cut -d' ' -f1
}

# need_monitoring_tools: Debian's sql exporter and promtool, at the end of PATH.
# Their packages start services when they are installed, so where they are not
# they are only unpacked, into the work folder, which needs no root either.
need_monitoring_tools() {
	local folder=$IDEM_WORK/tools
	PATH=$PATH:$folder/usr/bin
	export PATH
	if has prometheus-sql-exporter && has promtool; then
		return
	fi
	has apt-get || die "please install first: prometheus-sql-exporter and promtool (Debian's package prometheus)"
	step "fetching prometheus-sql-exporter and promtool" unpack_packages "$folder" \
		prometheus-sql-exporter prometheus || die "could not fetch them"
	[ -x "$folder/usr/bin/promtool" ] || die "the packages have no such programs"
}

# unpack_packages FOLDER PACKAGE...: what dpkg would put below /.
unpack_packages() {
	local folder=$1 package
	shift
	mkdir -p "$folder" || return 1
	(
		cd "$folder" || exit 1
		retry 3 apt-get -o APT::Sandbox::User=root download -qq "$@" </dev/null ||
			{ am_root && apt_update && apt-get -o APT::Sandbox::User=root download -qq "$@" </dev/null; } || exit 1
		for package in ./*.deb; do
			dpkg -x "$package" . || exit 1
			rm -f "$package"
		done
	)
}

# Mirrors stumble: each half is tried three times.
apt_update() { retry 3 apt-get -o Acquire::Retries=3 update -qq </dev/null; }

apt_install() {
	DEBIAN_FRONTEND=noninteractive retry 3 \
		apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "$@" </dev/null
}

# npm_folder NAME: the npm packages of test/NAME, as its lock file has them, in
# $IDEM_WORK/NAME/node_modules.
npm_folder() {
	local source=$IDEM_TOP/test/$1 folder=$IDEM_WORK/$1
	mkdir -p "$folder"
	if ! cmp -s "$source/package-lock.json" "$folder/node_modules/made-from"; then
		cp "$source"/{package.json,package-lock.json,.npmrc} "$folder/"
		step "installing npm packages of test/$1" npm_install "$folder" || return 1
		cp "$folder/package-lock.json" "$folder/node_modules/made-from"
	fi
}

npm_install() { retry 3 npm ci --prefix "$1" --no-audit --no-fund </dev/null; }

apt_fetch() { apt_update && apt_install "$@"; }

retry() {
	local tries=$1 try
	shift
	for ((try = 1; try <= tries; try++)); do
		"$@" && return 0
		say "attempt $try of $tries failed: $*"
		sleep $((try * 3))
	done
	return 1
}
