# docs/chain.md, kept true: its SQL is run, as PostgREST and a worker would.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

page_is_true(new_node('main'), 'docs/chain.md');
done_testing();
