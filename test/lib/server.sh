# shellcheck shell=bash
# A private copy of the server, with the extension built and installed into it.
#
# PostgreSQL finds its libraries and its share folder relative to the place of
# its executables.  Copying bin, lib and share side by side therefore gives a
# server of our own, into which `make install` may write, while the system's
# stays as it is.  Headers are only read, so they are linked to.
#
#   private_server    sets IDEM_PG_CONFIG, IDEM_BIN, IDEM_MAJOR, IDEM_BUILD
#
# IDEM_BUILD is a copy of this checkout's sources, built for that server.  One
# folder per server keeps the objects of different majors apart, and leaves
# results and objects out of the checkout.

# The pg_config that was asked for; else the oldest supported one, best one that
# comes with what building needs.
source_pg_config() {
	local candidate
	if [ -n "${PG_CONFIG:-}" ]; then
		command -v "$PG_CONFIG" || die "no such program: PG_CONFIG=$PG_CONFIG"
		return
	fi
	for candidate in $(supported_pg_configs) "$(command -v pg_config)"; do
		if [ -e "$("$candidate" --pgxs 2>/dev/null)" ]; then
			echo "$candidate"
			return
		fi
	done
	for candidate in $(supported_pg_configs); do
		if [ -x "${candidate%/*}/initdb" ]; then
			echo "$candidate"
			return
		fi
	done
	return 1
}

supported_pg_configs() {
	local major
	for major in $(wanted_majors); do
		ls "/usr/lib/postgresql/$major/bin/pg_config" 2>/dev/null || true
	done
}

major_of() { "$1" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/'; }

# pgxs_folder CONFIG, headers_folder CONFIG: with that server, or unpacked.
pgxs_folder() {
	first_with src/makefiles/pgxs.mk "$("$1" --pkglibdir)/pgxs" \
		"$(unpacked_headers "$1")/usr/lib/postgresql/$(major_of "$1")/lib/pgxs"
}

headers_folder() {
	first_with postgres.h "$("$1" --includedir-server)" \
		"$(unpacked_headers "$1")/usr/include/postgresql/$(major_of "$1")/server"
}

unpacked_headers() { echo "$IDEM_WORK/unpacked/headers-$(package_version "$1")"; }

# package_version CONFIG: Debian's, of its own server; else the major.
package_version() {
	dpkg-query -W -f '${Version}' "postgresql-$(major_of "$1")" 2>/dev/null || major_of "$1"
}

# need_headers CONFIG: sees that SOURCE, a pg_config, has headers.  They must be
# of the server's very version: within a major, too, an inline function may call
# one that an older server lacks.  Where that version is offered no more, a newer
# server is unpacked with its headers.
need_headers() {
	local major package newer
	SOURCE=$1
	! pgxs_folder "$1" >/dev/null || ! headers_folder "$1" >/dev/null || return 0
	major=$(major_of "$1")
	package=postgresql-server-dev-$major
	know_packages "$package"
	if offered "$package=$(package_version "$1")"; then
		unpack_packages "$(unpacked_headers "$1")" "$package=$(package_version "$1")"
	else
		newer=$IDEM_WORK/unpacked/server-$major
		unpack_packages "$newer" "$package" "postgresql-$major" "postgresql-client-$major"
		SOURCE=$newer/usr/lib/postgresql/$major/bin/pg_config
	fi
}

# pgtap_folder MAJOR PG_CONFIG: where pgTAP's files are: with that server, or
# (they are SQL only) with Debian's server of the same major.
pgtap_folder() {
	first_with pgtap.control ${2:+"$("$2" --sharedir)/extension"} "/usr/share/postgresql/$1/extension"
}

first_with() {
	local file=$1 folder
	shift
	for folder in "$@"; do
		if [ -e "$folder/$file" ]; then
			(cd "$folder" && pwd)
			return
		fi
	done
	return 1
}

# --- the copy -----------------------------------------------------------------

private_server() {
	local source root SOURCE
	source=$(source_pg_config) || die "no pg_config of a supported server found"
	one_at_a_time
	need_headers "$source"
	source=$SOURCE
	IDEM_MAJOR=$(major_of "$source")
	root=$IDEM_WORK/$(server_key "$source")
	IDEM_BUILD=$root/build
	if [ "$(cat "$root/made-from" 2>/dev/null)" != "$(server_stamp "$source")" ]; then
		step "copying PostgreSQL $IDEM_MAJOR to ${root#"$IDEM_TOP"/}" copy_server "$source" "$root" ||
			die "could not make a private copy of the server"
	fi
	IDEM_BIN=$(cat "$root/bindir")
	IDEM_PG_CONFIG=$IDEM_BIN/pg_config
	copy_sources || die "could not copy the sources to $IDEM_BUILD"
	step "building idempotency for PostgreSQL $IDEM_MAJOR" build_extension ||
		die "the build failed"
	export IDEM_PG_CONFIG IDEM_BIN IDEM_MAJOR IDEM_BUILD
}

# pg15 for Debian's own server, pg15-<number> for one from elsewhere.
server_key() {
	local bindir major
	bindir=$("$1" --bindir)
	major=$(major_of "$1")
	if [ "$bindir" = "/usr/lib/postgresql/$major/bin" ]; then
		echo "pg$major"
	else
		echo "pg$major-$(printf '%s' "$bindir" | cksum | cut -d' ' -f1)"
	fi
}

server_stamp() {
	"$1" --version
	stat -c '%n %Y %s' "$("$1" --bindir)/postgres"
	stat -c '%n %Y' "$(pgtap_folder "$(major_of "$1")" "$1")/pgtap.control" 2>/dev/null || true
}

copy_server() {
	local source=$1 root=$2 prefix bin share extension pgxs
	rm -rf "$root"
	mkdir -p "$root/server"
	bin=$("$source" --bindir)
	share=$("$source" --sharedir)
	prefix=$(common_prefix "$bin" "$share" "$("$source" --pkglibdir)" "$("$source" --includedir-server)")
	copy_below "$prefix" "$bin" "$root/server" &&
		copy_below "$prefix" "$share" "$root/server" --exclude=./man --exclude=./doc &&
		copy_below "$prefix" "$("$source" --pkglibdir)" "$root/server" --exclude=./bitcode ||
		return 1
	pgxs=$root/server$(below "$prefix" "$("$source" --pkglibdir)")/pgxs
	[ -e "$pgxs" ] || cp -a "$(pgxs_folder "$source")" "$pgxs" || return 1
	link_below "$prefix" "$("$source" --includedir-server)" "$root/server" "$(headers_folder "$source")"
	link_below "$prefix" "$("$source" --pkgincludedir)" "$root/server"
	link_below "$prefix" "$("$source" --includedir)" "$root/server"
	extension=$root/server${share#"$prefix"}/extension
	[ -e "$extension/pgtap.control" ] || copy_pgtap "$source" "$extension"
	verify_copy "$root/server${bin#"$prefix"}/pg_config" "$root/server" || return 1
	printf '%s\n' "$root/server${bin#"$prefix"}" >"$root/bindir"
	server_stamp "$source" >"$root/made-from"
	own "$root"
}

common_prefix() {
	local prefix=$1 path
	for path in "$@"; do
		while [ "${path#"$prefix"/}" = "$path" ]; do
			prefix=${prefix%/*}
		done
	done
	echo "$prefix"
}

# copy_below PREFIX FOLDER ROOT [TAR-OPTION...]
copy_below() {
	local prefix=$1 folder=$2 root=$3
	shift 3
	mkdir -p "$root${folder#"$prefix"}"
	tar -C "$folder" "$@" -cf - . | tar -C "$root${folder#"$prefix"}" -xf -
}

below() { echo "${2#"$1"}"; }

# link_below PREFIX FOLDER ROOT [TARGET].  A folder already there (made by
# copying or linking something above it) stays.
link_below() {
	local prefix=$1 folder=$2 root=$3 target=${4:-$2} link
	link=$root${folder#"$prefix"}
	[ "$link" != "$root$folder" ] && [ ! -e "$link" ] || return 0
	mkdir -p "$(dirname "$link")"
	ln -s "$target" "$link"
}

copy_pgtap() {
	local folder
	if folder=$(pgtap_folder "$(major_of "$1")" "$1"); then
		cp "$folder"/pgtap* "$2/"
	fi
}

# Were a path not relative after all, `make install` would reach the system.
verify_copy() {
	local config=$1 root=$2 what path
	for what in bindir pkglibdir sharedir pgxs; do
		path=$("$config" "--$what")
		case $path in
			"$root"/*) ;;
			*) echo "the copied server still says $what = $path"; return 1 ;;
		esac
	done
}

# --- the build ----------------------------------------------------------------

# Time stamps are kept, so that make rebuilds only what changed; what the
# checkout no longer has goes, what was built stays.
copy_sources() {
	mkdir -p "$IDEM_BUILD"
	own "$IDEM_BUILD"
	rm -rf "$IDEM_BUILD"/{sql,test,expected,results} "$IDEM_BUILD"/*.so
	[ ! -d "$IDEM_BUILD/src" ] || find "$IDEM_BUILD/src" -name '*.[ch]' -delete
	pack_sources | (cd "$IDEM_BUILD" && as_server tar --no-same-owner -xf -)
}

# The checkout as a tar stream, without what was built in it.
pack_sources() {
	local parts=(Makefile idempotency.control sql src test) part version built=()
	version=$(sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" "$IDEM_TOP/idempotency.control")
	case "$(sed -n 's/^RELEASED =//p' "$IDEM_TOP/Makefile") " in
		*" $version "*) ;;
		*) built=(--exclude="sql/idempotency--$version.sql") ;;
	esac
	for part in .packaging docs expected README.md CHANGELOG.md LICENSE; do
		[ ! -e "$IDEM_TOP/$part" ] || parts+=("$part")
	done
	tar -C "$IDEM_TOP" --exclude='*.o' --exclude='*.bc' --exclude='*.so' \
		${built[@]+"${built[@]}"} -cf - "${parts[@]}"
}

# Bitcode for the just-in-time compiler would only cost time here.  make does not
# know that objects were built with other flags.
build_extension() {
	(
		cd "$IDEM_BUILD" || exit
		if [ "$(cat built-with 2>/dev/null)" != "${COPT:-}" ]; then
			find src -name '*.o' -delete -o -name '*.gc??' -delete
			printf '%s' "${COPT:-}" >built-with
		fi
		as_server env -u MAKEFLAGS -u MAKELEVEL -u MAKEOVERRIDES \
			make -j2 all install PG_CONFIG="$IDEM_PG_CONFIG" with_llvm=no WERROR=-Werror
	)
}
