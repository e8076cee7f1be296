# Pages of the docs about what goes out and what comes in, and about the whole
# chain, kept true.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('pages', conf => "shared_preload_libraries = 'idempotency'\nidempotency.worker = off\n");

page_is_true($node, 'docs/calls.md');
page_is_true($node, 'docs/inbox.md');
page_is_true($node, 'docs/chain.md');
page_is_true($node, 'docs/outbox.md');

my $second = new_node('trust');
page_is_true($second, 'docs/trust.md');

done_testing();
