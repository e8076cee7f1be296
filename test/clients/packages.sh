# shellcheck shell=bash
# What the clients need: groups for need_packages, one a stack, and packages that
# are only unpacked because installing them would start a service (pgbouncer) or
# bring a hundred others along (pgx).
set -euo pipefail

missing_for_clients_python() {
	local module package
	for module in psycopg psycopg2 sqlalchemy django fastapi uvicorn; do
		package=python3-$module
		lacks "$package" /usr/bin/python3 -c "import $module"
	done
}

missing_for_clients_java() {
	lacks default-jdk-headless has javac
	lacks default-jre-headless has java
	lacks libpostgresql-jdbc-java test -e /usr/share/java/postgresql.jar
	lacks libaopalliance-java test -e /usr/share/java/aopalliance.jar
	lacks libspring-transaction-java test -e /usr/share/java/spring3-transaction.jar
	lacks libspring-jdbc-java test -e /usr/share/java/spring3-jdbc.jar
	lacks libspring-context-java test -e /usr/share/java/spring3-context.jar
	lacks libspring-web-servlet-java test -e /usr/share/java/spring3-web.servlet.jar
	lacks libjetty9-java test -e /usr/share/java/jetty9-servlet.jar
}

missing_for_clients_php() {
	lacks php-cli has php
	lacks php-pgsql php -r 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);'
}

missing_for_clients_go() {
	lacks golang-go has go
}

missing_for_clients_ruby() {
	lacks ruby-railties /usr/bin/ruby -e 'require "rails"'
	lacks ruby-activerecord /usr/bin/ruby -e 'require "active_record"'
	lacks ruby-pg /usr/bin/ruby -e 'require "pg"'
	lacks puma /usr/bin/ruby -e 'require "puma"'
}

missing_for_clients_pooler() {
	lacks libevent-2.1-7 library libevent-2.1.so.7
	lacks libc-ares2 library libcares.so.2
}

library() { grep -q . < <(find /lib /usr/lib -name "$1*" -print -quit); }

# GOPATH in $IDEM_WORK/unpacked/go/usr/share/gocode
unpack_pgx() {
	local part packages=()
	for part in pgx-v4 pgconn pgtype pgio pgpassfile pgservicefile chunkreader-v2 pgproto3-v2 puddle; do
		packages+=("golang-github-jackc-$part-dev")
	done
	unpack_packages "$IDEM_WORK/unpacked/go" "${packages[@]}" \
		golang-golang-x-crypto-dev golang-golang-x-text-dev
}

# pgbouncer at the end of PATH, pg_cron beside the private server's own extensions.
unpack_pgbouncer() {
	PATH=$PATH:$IDEM_WORK/unpacked/pgbouncer/usr/sbin
	export PATH
	has pgbouncer || unpack_packages "$IDEM_WORK/unpacked/pgbouncer" pgbouncer
}

unpack_pg_cron() {
	local folder=$IDEM_WORK/unpacked/pg_cron-$IDEM_MAJOR
	unpack_packages "$folder" "postgresql-$IDEM_MAJOR-cron"
	cp "$folder/usr/lib/postgresql/$IDEM_MAJOR/lib/pg_cron.so" "$("$IDEM_PG_CONFIG" --pkglibdir)/"
	cp "$folder/usr/share/postgresql/$IDEM_MAJOR/extension"/pg_cron* "$("$IDEM_PG_CONFIG" --sharedir)/extension/"
}
