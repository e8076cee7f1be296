# shellcheck shell=bash
# Installs what a script needs and the machine lacks.
#
# Each need is tested by what is used, not by package names, so that a server
# built from source serves as well as Debian's.  As root on Debian the missing
# packages are installed; otherwise the script stops and names them.

# The majors to look for, best first; IDEM_WANT_MAJOR leaves one.  The oldest
# comes first because it is the one that most people have longest.
wanted_majors() { echo "${IDEM_WANT_MAJOR:-15 16 17 18}"; }

# need_packages GROUP...: groups are build, server, tap, lint, model, node, python, coverage, debugger,
# valgrind, page (charts), deb (to build Debian packages), and source (to build PostgreSQL itself).
need_packages() {
	local missing
	chosen_server_is_one
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ "${#missing[@]}" -gt 0 ] || return 0
	if ! am_root || ! has apt-get; then
		die "please install first: ${missing[*]} (as root on Debian this script does it itself)"
	fi
	step "asking for package lists" apt_update || die "apt-get update failed"
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	announce "${missing[@]}"
	step "installing them" apt_install "${missing[@]}" || die "could not install ${missing[*]}"
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ "${#missing[@]}" -eq 0 ] || die "still missing after installation: ${missing[*]}"
}

# What PG_CONFIG says ends in names of packages and folders.
chosen_server_is_one() {
	[ -n "${PG_CONFIG:-}" ] || return 0
	[[ $("$PG_CONFIG" --version 2>/dev/null) =~ ^PostgreSQL\ 1[5-8]([^0-9]|$) ]] ||
		die "PG_CONFIG=$PG_CONFIG is not the pg_config of a PostgreSQL 15 to 18"
}

# announce PACKAGE...: what is about to be installed, with what it needs.
announce() {
	local plan
	plan=$(apt-get install --assume-no --no-install-recommends "$@" </dev/null 2>&1 || true)
	say "This is installed, and nothing else of the system is changed:"
	sed -n '/^The following NEW packages/,/^[^ ]/ s/^  //p' <<<"$plan" | tr '\n' ' ' | fold -s -w 76 | sed 's/^/  /' >&2
	say
	sed -nE -e 's/^.* ([0-9]+) newly installed.*/  \1 packages;/p' \
		-e 's/^Need to get (.*) of archives.*/  \1 to fetch;/p' \
		-e 's/^After this operation, (.*) of additional.*/  \1 on disk/p' <<<"$plan" | tr -d '\n' >&2
	say
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

# The server's headers are no need: Debian's package of them brings a compiler
# of its own along, so it is unpacked beside the private server (server.sh).
missing_for_server() {
	local config
	if config=$(source_pg_config); then
		lacks "postgresql-$(major_of "$config")" test -x "$("$config" --bindir)/initdb"
		[[ $("$config" --libs) != *-lcrypto* ]] || lacks libssl-dev test -e /usr/include/openssl/evp.h
	else
		echo "postgresql-$(offered_major)"
		lacks libssl-dev test -e /usr/include/openssl/evp.h
	fi
}

missing_for_tap() {
	local config major
	if config=$(source_pg_config); then
		major=$(major_of "$config")
	else
		major=$(offered_major)
	fi
	lacks "postgresql-$major-pgtap" pgtap_folder "$major" "${config:-}"
	lacks libipc-run-perl perl -MIPC::Run -e 1
	lacks perl has prove
	lacks python3 has python3
}

missing_for_lint() {
	lacks pg-bsd-indent indent_program
	lacks universal-ctags ctags_is_universal
	lacks shellcheck has shellcheck
}

missing_for_node() {
	lacks nodejs has node
	lacks npm has npm
}

missing_for_python() {
	lacks python3 has python3
}

missing_for_model() {
	lacks spin has spin
}

missing_for_debugger() {
	lacks gdb has gdb
}

missing_for_coverage() {
	lacks gcc has gcov
	lacks python3 has python3
}

missing_for_valgrind() {
	lacks valgrind has valgrind
}

# Here package names count: dpkg-buildpackage asks for them.
missing_for_deb() {
	lacks build-essential installed build-essential
	lacks debhelper has dh
	lacks dpkg-dev has dpkg-buildpackage
	lacks postgresql-server-dev-all has pg_buildext
	lacks postgresql-server-dev-all installed postgresql-server-dev-all
}

installed() { [[ $(dpkg-query -W -f '${Status}' "$1") == *' installed' ]]; }

# Charts of docs/performance.md.
missing_for_page() {
	lacks gnuplot-nox has gnuplot
	lacks perl has perl
}

missing_for_source() {
	lacks libreadline-dev test -e /usr/include/readline/readline.h
	lacks zlib1g-dev test -e /usr/include/zlib.h
	lacks libssl-dev test -e /usr/include/openssl/ssl.h
	lacks bzip2 has bzip2
}

# Debian 13 has it with the server, no longer in a package of its own.
indent_program() {
	has pg_bsd_indent && command -v pg_bsd_indent || ls /usr/lib/postgresql/*/bin/pg_bsd_indent 2>/dev/null | tail -1 | grep .
}

ctags_is_universal() { has ctags && ctags --version 2>/dev/null | grep -q Universal; }

# The first wanted major that apt offers.
offered_major() {
	local major
	for major in $(wanted_majors); do
		if offered "postgresql-server-dev-$major"; then
			echo "$major"
			return
		fi
	done
	wanted_majors | cut -d' ' -f1
}

# need_monitoring_tools: Debian's sql exporter and promtool, at the end of PATH.
# Their packages start services when they are installed, so where they are not
# they are only unpacked.
need_monitoring_tools() {
	local folder=$IDEM_WORK/unpacked/monitoring packages=(prometheus-sql-exporter prometheus)
	PATH=$PATH:$folder/usr/bin
	export PATH
	if has prometheus-sql-exporter && has promtool; then
		return
	fi
	! offered promtool || packages=(prometheus-sql-exporter promtool)
	unpack_packages "$folder" "${packages[@]}"
	[ -x "$folder/usr/bin/promtool" ] || die "the packages have no such programs"
}

# unpack_packages FOLDER PACKAGE...: what dpkg would put below /, without
# installing anything, which needs no root either.
unpack_packages() {
	local folder=$1
	shift
	[ ! -e "$folder" ] || return 0
	has apt-get || die "please install first: $*"
	prepare_work_folder
	know_packages "$@"
	step "fetching $*" unpack_into "$folder" "$@" || die "could not fetch $*"
}

# know_packages PACKAGE...: sees that apt knows them.
know_packages() {
	! offered "$@" || return 0
	am_root || die "apt-get does not know $*: run \"apt-get update\" as root, or install them"
	step "asking for package lists" apt_update || die "apt-get update failed"
}

offered() { apt-get download -qq --print-uris "$@" >/dev/null 2>&1; }

unpack_into() {
	local folder=$1 package
	shift
	rm -rf "$folder.half"
	mkdir -p "$folder.half" || return
	(
		cd "$folder.half" || exit
		retry 3 apt-get -o APT::Sandbox::User=root download -qq "$@" </dev/null || exit
		for package in ./*.deb; do
			dpkg -x "$package" . && rm -f "$package" || exit
		done
	) && mv "$folder.half" "$folder"
}

# Mirrors stumble: each half is tried three times.
apt_update() { retry 3 apt-get -o Acquire::Retries=3 update -qq </dev/null; }

# An installation that has begun is carried to its end, whatever becomes of the
# script: it does not bear the mark of the run (run.sh).
apt_install() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	DEBIAN_FRONTEND=noninteractive env -u IDEM_RUN -u TMPDIR bash -c '
		trap "" INT TERM HUP
		eval "$1"
		without_clusters retry 3 apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${@:2}" </dev/null
	' apt_install "$(declare -f without_clusters retry say)" "$@"
}

# without_clusters COMMAND...: runs it while a server package that is installed
# makes no cluster; leaves the settings as the packages make them.
without_clusters() {
	local settings=/etc/postgresql-common/createcluster.conf status=0
	mkdir -p "${settings%/*}" || return
	[ ! -e "$settings" ] || cp -p "$settings" "$settings.before" || return
	echo 'create_main_cluster = false' >>"$settings"
	"$@" || status=$?
	if [ -e "$settings.before" ]; then
		mv "$settings.before" "$settings"
	elif ! cp "/usr/share/postgresql-common/${settings##*/}" "$settings" 2>/dev/null; then
		rm -f "$settings"
		rmdir "${settings%/*}" 2>/dev/null
	fi
	return "$status"
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

npm_install() {
	retry 3 npm ci --prefix "$1" --cache "$IDEM_WORK/npm" --no-update-notifier --no-audit --no-fund </dev/null
}

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
