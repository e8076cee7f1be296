# shellcheck shell=bash
# The processes of test/e2e, run beside a private server.
#
#   chain_packages                    what they need of npm
#   chain_run CLUSTER COMMAND...      as the unprivileged user
#
# They run in the copy of the checkout that the server was built from, which
# that user can reach; node finds its packages there through a link.  Call
# private_server first.

chain_packages() {
	npm_folder e2e || return
	ln -sfn "$IDEM_WORK/e2e/node_modules" "$IDEM_BUILD/node_modules"
}

# The server is named in the environment, and so is what stops and starts it.
chain_run() {
	local cluster=$1
	shift
	(
		cluster_env "$cluster"
		cd "$IDEM_BUILD" || exit
		as_server env IDEM_BIN="$IDEM_BIN" IDEM_DATA="$(cluster_data "$cluster")" \
			IDEM_SERVER_LOG="$(cluster_log "$cluster")" "$@"
	)
}
