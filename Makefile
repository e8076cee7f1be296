# idempotency: build, install and test.
#
#   make demo            see it work     (both install missing packages, and else
#   make test            see it proven    touch nothing of the system)
#   make && make install && make installcheck     the ordinary PGXS way
#
# PG_CONFIG=/path/to/pg_config chooses another server.

EXTENSION = idempotency
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" idempotency.control)

# The rooms of src/, in reading order; src/README.md is the map.
ROOMS = idempotency guc catalog answer json kinds settings stored policy define destination grant \
	identity fingerprint canonical reshape normalise paths members sort number \
	image json_text writer utf8 digest \
	claim finish status accept once run resolve list retry calls webhook \
	discipline breaker budget window leases \
	emit ordinals events take taken deliver due frontier \
	launcher worker visits activity serve lines requests flush pointer counters purge shared life permit store segment work rows \
	subtransaction

MODULE_big = idempotency
OBJS = $(ROOMS:%=src/%.o)

DATA = $(wildcard sql/idempotency--*--*.sql)
DATA_built = sql/idempotency--$(EXTVERSION).sql

# A warning is an error in our own builds; packagers with other compilers
# build with WERROR= .  The server's headers are included as system headers,
# because they are not clean under -Wextra and their warnings are not ours to
# mend.  Callback signatures are PostgreSQL's, so unused parameters are normal;
# so is comparing an int index with lengthof(), which is a size_t.
WERROR = -Werror
PG_CPPFLAGS = -isystem $(includedir_server)
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
ISOLATION_OPTS = --inputdir=test --outputdir=. --load-extension=idempotency

EXTRA_CLEAN = $(DATA_built) results output_iso tmp_check log regression.diffs regression.out

# What people type first must work where no PostgreSQL is installed yet: these
# targets run scripts that install what is missing, and need no PGXS.
SCRIPTED = demo test bench crash races lint indent matrix clean-private
.PHONY: $(SCRIPTED)

ifeq ($(filter undefined default,$(origin PG_CONFIG)),)
CHOSEN_SERVER = PG_CONFIG='$(PG_CONFIG)'
endif
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))

ifneq ($(PGXS),)
include $(PGXS)

# PGXS does not follow header files by itself.
$(OBJS): $(wildcard src/*.h)

clean: clean-private
else ifneq ($(filter-out $(SCRIPTED),$(or $(MAKECMDGOALS),all)),)
$(error $(PG_CONFIG) knows no PGXS: install the server's development package (postgresql-server-dev-NN), or give PG_CONFIG=/path/to/pg_config; "make demo" and "make test" install it themselves)
endif

sql/idempotency--$(EXTVERSION).sql: $(sort $(wildcard sql/parts/*.sql))
	cat $^ > $@

demo:
	@$(CHOSEN_SERVER) KEEP='$(KEEP)' bash test/demo/run

test:
	@$(CHOSEN_SERVER) bash test/run

bench:
	@$(CHOSEN_SERVER) bash test/bench/run
	@$(CHOSEN_SERVER) bash test/bench/once

crash:
	@$(CHOSEN_SERVER) bash test/crash/run

races:
	@$(CHOSEN_SERVER) bash test/races

matrix:
	@bash test/matrix

lint:
	@bash test/lint

indent:
	@bash test/bin/indent --write

# the private servers and their throw-away clusters
clean-private:
	@bash test/bin/private-server --remove
