# One psql that stays connected.  A statement may be sent and its result taken
# later, so that many sessions can be in the middle of something at once.
#
#   $session->run(SQL)      output; dies on an error
#   $session->value(SQL)    the same, with the output as one line
#   $session->try(SQL)      its SQLSTATE, '00000' if it worked
#   $session->send(SQL); ... $session->result       in two halves
#   $session->sqlstate, $session->error, $session->output    of the last one
#   $session->pid           of its backend
#   $session->quit
#
# After each text psql is told to say a mark on both of its streams; what comes
# before the marks belongs to the text.  A session that was killed reads as
# SQLSTATE 'lost'.

package IdempotencyTest::Session;

use strict;
use warnings;

use IO::Select;
use IPC::Open3;
use PostgreSQL::Test::Utils;
use Symbol qw(gensym);
use Time::HiRes qw(time);

my $MARK = '--- end of result ---';

# new NODE, dbname => , user => , isolation => , options => , timeout => , set => { }
sub new
{
	my ($class, $node, %option) = @_;
	my $self = bless {
		out => '',
		err => '',
		timeout => $option{timeout} || $PostgreSQL::Test::Utils::timeout_default,
	}, $class;

	$self->start_psql($node, %option);
	$self->run('SET client_min_messages = warning');
	$self->run("SET default_transaction_isolation = '$option{isolation}'")
	  if $option{isolation};
	foreach my $name (sort keys %{ $option{set} || {} })
	{
		$self->run("SELECT set_config('$name', '$option{set}{$name}', false)");
	}
	$self->{backend} = $self->value('SELECT pg_backend_pid()');
	return $self;
}

sub start_psql
{
	my ($self, $node, %option) = @_;
	my $connection = $node->connstr($option{dbname} || 'postgres');

	$connection .= " user=$option{user}" if $option{user};
	local $ENV{PGOPTIONS} = $option{options} || '';
	local $ENV{PGCLIENTENCODING} = $option{client_encoding}
	  if $option{client_encoding};
	$self->{stderr} = gensym;
	$self->{psql} = open3(
		$self->{stdin}, $self->{stdout}, $self->{stderr},
		'psql',
		'--no-psqlrc', '--quiet', '--tuples-only', '--no-align',
		'--dbname', $connection, '--file', '-');
	$self->{select} = IO::Select->new($self->{stdout}, $self->{stderr});
	return;
}

sub pid { return $_[0]{backend}; }
sub sqlstate { return $_[0]{sqlstate}; }
sub error { return $_[0]{error}; }
sub output { return $_[0]{output}; }

sub send
{
	my ($self, $sql) = @_;

	$sql .= ';' unless $sql =~ /(;|(^|\s)\\[a-z]+( [^\n']*)?)\s*\z/;
	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{stdin}, "$sql\n\\echo '$MARK' :SQLSTATE\n\\warn '$MARK'\n";
	return;
}

sub result
{
	my ($self) = @_;
	my $deadline = time + $self->{timeout};

	until ($self->take_result)
	{
		die "no answer from psql in $self->{timeout} seconds:\n$self->{out}\n$self->{err}\n"
		  unless $self->pump($deadline);
	}
	return $self->{output};
}

# Has the whole answer arrived, or all there will be?
sub take_result
{
	my ($self) = @_;
	my $marked = $self->{out} =~ /^\Q$MARK\E (\S+)\n/m && $self->{err} =~ /^\Q$MARK\E\n/m;

	return 0 unless $marked || $self->{ended};
	$self->{sqlstate} = 'lost';
	$self->{sqlstate} = $1 if $self->{out} =~ s/^\Q$MARK\E (\S+)\n.*//ms;
	$self->{err} =~ s/^\Q$MARK\E\n//m;
	($self->{output}, $self->{error}) = ($self->{out}, $self->{err});
	($self->{out}, $self->{err}) = ('', '');
	chomp $self->{output};
	return 1;
}

# Read what there is; false when nothing came until the deadline.
sub pump
{
	my ($self, $deadline) = @_;
	my $wait = $deadline - time;
	my @ready = $self->{select}->can_read($wait > 0 ? $wait : 0);

	foreach my $handle (@ready)
	{
		my $stream = $handle == $self->{stdout} ? 'out' : 'err';

		next if sysread $handle, $self->{$stream}, 65536, length $self->{$stream};
		$self->{select}->remove($handle);
	}
	$self->{ended} = 1 if $self->{select}->count == 0;
	return scalar @ready;
}

# Has an answer come without waiting for it?
sub answered
{
	my ($self) = @_;

	1 while $self->pump(0) && !$self->{ended};
	return $self->{ended} || $self->{out} =~ /\Q$MARK\E/;
}

sub try
{
	my ($self, $sql) = @_;

	$self->send($sql);
	$self->result;
	return $self->{sqlstate};
}

sub run
{
	my ($self, $sql) = @_;

	$self->try($sql);
	die "failed with $self->{sqlstate}: $sql\n$self->{error}"
	  if $self->{sqlstate} ne '00000' || $self->{error} =~ /ERROR:|FATAL:/;
	return $self->{output};
}

sub value
{
	my ($self, $sql) = @_;
	my $output = $self->run($sql);

	$output =~ s/\n/ /g;
	return $output;
}

# A claim whose answer is kept in psql variables: :'name' is the answer as
# text, to be cast to idem_answer.  Returns the verdict.
sub claim
{
	my ($self, $arguments, $name) = @_;

	$name ||= 'c';
	$self->run("SELECT c::text AS $name, c.verdict AS ${name}_verdict, c.fence AS ${name}_fence, "
		  . "c.attempt AS ${name}_attempt, c.holder AS ${name}_holder FROM idem_claim($arguments) c \\gset");
	return $self->variable("${name}_verdict");
}

sub variable
{
	my ($self, $name) = @_;

	return $self->value("\\echo :$name");
}

sub complete
{
	my ($self, $result, $name) = @_;

	$name ||= 'c';
	return $self->value("SELECT idem_complete(:'$name'::idem_answer, '$result')");
}

sub quit
{
	my ($self) = @_;

	return if !$self->{psql};
	close $self->{stdin};
	1 while !$self->{ended} && $self->pump(time + 1);
	kill 'TERM', $self->{psql} unless $self->{ended};    # it waits for the server
	waitpid $self->{psql}, 0;
	$self->{psql} = undef;
	return;
}

sub DESTROY
{
	my ($self) = @_;

	local ($?, $@, $!);
	if (${^GLOBAL_PHASE} eq 'DESTRUCT')
	{
		kill 'TERM', $self->{psql} if $self->{psql};
		return;
	}
	$self->quit;
	return;
}

1;
