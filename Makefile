# idempotency: build, install and test.
#
#   make demo            see it work     (both install missing packages, and else
#   make test            see it proven    touch nothing of the system)
#   make demo-chain      see it work between processes; needs Node.js
#   make && make install && make installcheck     the ordinary PGXS way
#   make dist            the archive for PGXN, of what is committed
#   make deb             Debian packages, in .tmp/deb
#
# PG_CONFIG=/path/to/pg_config chooses another server; make -f ELSEWHERE/Makefile
# builds in the current folder.

.DEFAULT_GOAL = all

EXTENSION = idempotency
TOP := $(dir $(firstword $(MAKEFILE_LIST)))
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(TOP)idempotency.control)

# The files of src/, by folder; src/README.md is the map and has the layer rule.
SERVER = catalog rows json sort subtransaction shmem entries
PARAMS = identity canonical number normalise reshape json_text utf8 digest
SETTINGS = params_functions setting_types operation_settings settings_row \
	access call request_log define destination
RECORD = record_state place store segment forget_ranges purge work_list open_claims
CLAIM = answer claim finish status accept once run reconcile
OUTBOX = emit events queue queue_start take ack
CALLS = limiter breaker retry_budget window call_functions
WORKER = launcher worker runs
STATS = counters

MODULE_big = idempotency
OBJS = src/idempotency.o src/guc.o \
	$(SERVER:%=src/server/%.o) \
	$(PARAMS:%=src/params/%.o) \
	$(SETTINGS:%=src/settings/%.o) \
	$(RECORD:%=src/record/%.o) \
	$(CLAIM:%=src/claim/%.o) \
	$(OUTBOX:%=src/outbox/%.o) \
	$(CALLS:%=src/calls/%.o) \
	$(WORKER:%=src/worker/%.o) \
	$(STATS:%=src/stats/%.o)

# Versions that are released: their scripts are kept as they were.  "make freeze"
# adds the present one.
RELEASED = 1.0
DATA = $(patsubst $(TOP)%,%,$(wildcard $(TOP)sql/idempotency--*--*.sql)) $(RELEASED:%=sql/idempotency--%.sql)
DATA_built = $(patsubst %,sql/idempotency--%.sql,$(filter-out $(RELEASED),$(EXTVERSION)))

# The pages, in a folder of their own below the server's documentation.
DOCS = README.md CHANGELOG.md $(patsubst $(TOP)%,%,$(wildcard $(TOP)docs/*.md))

# A warning is an error in our own builds (test/lib/server.sh), not in those of
# others, with compilers to come.  The server's headers are included as system headers,
# because they are not clean under -Wextra and their warnings are not ours to
# mend.  Callback signatures are PostgreSQL's, so unused parameters are normal;
# so is comparing an int index with lengthof(), which is a size_t.
WERROR =
PG_CPPFLAGS = $(if $(CALLS),-DWITH_CALLS) $(if $(OUTBOX),-DWITH_OUTBOX) -I$(srcdir)/src -isystem $(includedir_server)
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare $(WERROR)

# Nobody replaces our functions at run time: they may be inlined.
PG_CFLAGS += -fno-semantic-interposition

# digest.c calls the crypto library that the server is linked with.
SHLIB_LINK = $(filter -lcrypto, $(LIBS))

# Regression tests in test/sql, isolation tests in test/specs; what both should
# print is in expected/.  They need the pgtap extension.
REGRESS = $(sort $(patsubst test/sql/%.sql,%,$(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=pgtap --load-extension=idempotency
ISOLATION = $(sort $(patsubst test/specs/%.spec,%,$(wildcard test/specs/*.spec)))
override ISOLATION := $(if $(ISOLATION),common $(filter-out common,$(ISOLATION)))
ISOLATION_OPTS = --inputdir=$(AT_LEVEL) --outputdir=$(AT_LEVEL) --load-extension=idempotency

# The isolation level of the isolation tests; test/run runs them at all three:
# read_committed, repeatable_read, serializable.
LEVEL = read_committed
AT_LEVEL = output_iso/$(LEVEL)
installcheck: export PGOPTIONS += -c default_transaction_isolation=$(subst _,\ ,$(LEVEL))
installcheck: $(if $(ISOLATION),$(AT_LEVEL))

EXTRA_CLEAN = $(DATA_built) results output_iso tmp_check log regression.diffs regression.out \
	idempotency-*.zip

# What people type first must work where no PostgreSQL is installed yet: these
# targets run scripts that install what is missing, and need no PGXS.  Their
# recipes end in exec, so that a signal that make passes on reaches the script.
SCRIPTED = demo demo-chain test test-clients bare busy bench bench-instructions bench-page crash failover races check-history \
	check-history-faults check-sql-fuzz coverage mutants citus lint indent matrix hooks clean-private \
	freeze check-released check-upgrade dist deb check-deb
.PHONY: $(SCRIPTED)

ifeq ($(filter undefined default,$(origin PG_CONFIG)),)
CHOSEN_SERVER = PG_CONFIG='$(PG_CONFIG)'
endif
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))

ifneq ($(PGXS),)
include $(PGXS)
docmoduledir = $(EXTENSION)

# PGXS does not follow header files by itself, nor makes folders elsewhere.
$(OBJS): $(wildcard $(TOP)src/*.h $(TOP)src/*/*.h)
$(if $(filter-out ./,$(TOP)),$(shell mkdir -p $(sort $(dir $(OBJS))) sql))

clean: clean-private
else ifneq ($(filter-out $(SCRIPTED),$(or $(MAKECMDGOALS),all)),)
$(error $(PG_CONFIG) knows no PGXS: install the server's development package (postgresql-server-dev-NN), or give PG_CONFIG=/path/to/pg_config; "make demo" and "make test" install it themselves)
endif

.PHONY: $(AT_LEVEL)
$(AT_LEVEL):
	rm -rf $@
	mkdir -p $@/expected
	ln -s ../../test/specs $@/specs
	perl test/bin/expected write $(LEVEL) $@/expected $(ISOLATION)

PARTS = $(sort $(wildcard $(TOP)sql/parts/*.sql))
$(DATA_built): $(PARTS)
	cat $^ > $@

# After a release: keeps the script of the version, from which upgrades begin.
freeze: $(DATA_built)
	@$(if $(DATA_built),,echo "version $(EXTVERSION) is released already" && exit 1)
	sed -i 's/^RELEASED =.*/RELEASED = $(strip $(RELEASED) $(EXTVERSION))/' Makefile
	sed -i '/^# released/a !/$(DATA_built)' .gitignore
	@echo "commit Makefile, .gitignore and $(DATA_built)"

# Is the script of a released version what it was, and can every released
# version be updated to the present one?
check-released:
	@$(if $(DATA_built),,cat $(PARTS) | cmp - sql/idempotency--$(EXTVERSION).sql || \
		{ echo "version $(EXTVERSION) is released: raise default_version and write an upgrade script"; exit 1; })
	@$(if $(and $(DATA_built),$(RELEASED)),test -e sql/idempotency--$(lastword $(RELEASED))--$(EXTVERSION).sql || \
		{ echo "sql/idempotency--$(lastword $(RELEASED))--$(EXTVERSION).sql is missing"; exit 1; })

check-upgrade: check-released
	@exec env $(CHOSEN_SERVER) bash test/run tap 180_upgrade

demo:
	@exec env $(CHOSEN_SERVER) KEEP='$(KEEP)' bash test/demo/run

demo-chain:
	@exec env $(CHOSEN_SERVER) bash test/demo/chain

test:
	@exec env $(CHOSEN_SERVER) bash test/run

test-clients:
	@exec env $(CHOSEN_SERVER) bash test/clients/run

bare:
	@exec bash test/bare

busy:
	@exec bash test/busy

bench:
	@exec env $(CHOSEN_SERVER) QUICK='$(QUICK)' bash test/bench/run

# docs/performance.md and its charts, of what "make bench" measured last
bench-page:
	@exec bash test/bench/page/run

bench-instructions:
	@exec env $(CHOSEN_SERVER) bash test/bench/instructions

crash:
	@exec env $(CHOSEN_SERVER) bash test/crash/run

failover:
	@exec env $(CHOSEN_SERVER) bash test/crash/run failover

races:
	@exec env $(CHOSEN_SERVER) bash test/races

check-history:
	@exec env $(CHOSEN_SERVER) bash test/history/run

check-history-faults:
	@exec env $(CHOSEN_SERVER) bash test/history/run --faults

check-sql-fuzz:
	@exec env $(CHOSEN_SERVER) bash test/sqlfuzz/run

# gcov over the suites; "make coverage SUITES='regress isolation'" over some
coverage:
	@exec env $(CHOSEN_SERVER) bash test/coverage/run $(SUITES)

mutants:
	@exec env $(CHOSEN_SERVER) bash test/mutants/run

citus:
	@exec env $(CHOSEN_SERVER) bash test/citus/run

matrix:
	@exec bash test/matrix

lint:
	@exec bash test/lint

indent:
	@exec bash test/bin/indent --write

# What PGXN takes; of a checkout that is committed.
ARCHIVE = $(EXTENSION)-$(EXTVERSION).0.zip
dist:
	git archive --format=zip --prefix=$(EXTENSION)-$(EXTVERSION).0/ -o $(ARCHIVE) HEAD

deb:
	@exec bash .packaging/deb

check-deb:
	@exec bash test/deb

# runs lint before each commit
hooks:
	git config core.hooksPath .githooks

# the private servers and their throw-away clusters
clean-private:
	@exec bash test/bin/private-server --remove
