# shellcheck shell=bash
# A second copy of the private server and of its build, for libraries with faults that
# are planted into the sources.
#
#   faulty_server FOLDER            makes it; IDEM_BIN and IDEM_BUILD are its from then on
#   build_with_fault TABLE NAME     plants a fault, builds and installs the library
#
# A TABLE is a program that plants with "TABLE plant NAME FOLDER" (plant.py).  Call
# private_server first; clusters are of the copy after faulty_server.

faulty_server() {
	local root library
	root=$(dirname "$IDEM_BUILD")
	library=$("$IDEM_PG_CONFIG" --pkglibdir)
	rm -rf "$1"/{server,build}
	mkdir -p "$1"
	cp -al "$root/server" "$1/server" && cp -a "$IDEM_BUILD" "$1/build" || return
	own "$1/build"
	SOUND_SOURCES=$IDEM_BUILD/src
	FAULTY_LIBRARY=$1/server${library#"$root/server"}/idempotency.so
	IDEM_BUILD=$1/build
	IDEM_BIN=$1/server${IDEM_BIN#"$root/server"}
}

# The library is replaced, not written to: that is linked to the sound one, and may
# be in use.
build_with_fault() {
	rm -rf "$IDEM_BUILD/src" || return
	cp -a "$SOUND_SOURCES" "$IDEM_BUILD/" || return
	python3 -B "$1" plant "$2" "$IDEM_BUILD" || return
	(
		cd "$IDEM_BUILD" || exit
		as_server env -u MAKEFLAGS -u MAKELEVEL -u MAKEOVERRIDES \
			make -j2 idempotency.so PG_CONFIG="$IDEM_PG_CONFIG" with_llvm=no WERROR=
	) || return
	rm -f "$FAULTY_LIBRARY"
	cp "$IDEM_BUILD/idempotency.so" "$FAULTY_LIBRARY"
}
