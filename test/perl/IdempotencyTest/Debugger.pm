# A debugger that holds a backend at a named instant.
#
#   my $debugger = IdempotencyTest::Debugger->new($session->pid);
#   $debugger->stop_at('idem_complete_key', 'heap_insert', 'XLogInsertRecord');
#   $session->send("SELECT idem_complete_key(...)");
#   $debugger->wait_until_stopped($session);
#   kill_server($node);
#   $debugger->quit;                     or $debugger->let_go, and the call goes on
#
# A path of functions is reached one after the other: the first XLogInsertRecord
# within or after the first heap_insert of that call.  The backend stands before
# the first instruction of the last one.  The names are those that a server
# without debugging symbols exports, or of the library.

package IdempotencyTest::Debugger;

use strict;
use warnings;

use IO::Select;
use IPC::Open3;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# Signals are the backend's own affair.
my $SETTINGS = <<'END';
set prompt
set confirm off
set pagination off
set width 0
handle all nostop noprint pass
END

# new PID: attached to a backend, which stands still until stop_at().
sub new
{
	my ($class, $pid) = @_;
	my $self = bless { out => '' }, $class;

	$self->{gdb} = open3($self->{stdin}, $self->{stdout}, undef,
		'gdb', '-nx', '-q', '-iex', 'set debuginfod enabled off', '-iex', 'set auto-load off');
	$self->{select} = IO::Select->new($self->{stdout});
	$self->command($SETTINGS . "attach $pid");
	$self->command('info symbol $pc' . "\n" . 'echo --- attached ---\n');
	$self->read_until(qr/^--- attached ---$/m);
	$self->give_up('gdb cannot attach to a process of this user: a container has to allow ptrace, '
		  . 'and /proc/sys/kernel/yama/ptrace_scope, where it exists, has to be 0')
	  unless $self->{out} =~ / in section /;
	return $self;
}

# Fails the test, with what gdb said.
sub give_up
{
	my ($self, $why) = @_;

	diag("$why:\n$self->{out}");
	die "$why\n";
}

sub command
{
	my ($self, $command) = @_;

	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{stdin}, "$command\n";
	return;
}

# stop_at FUNCTION...: lets the backend go on, up to there.
sub stop_at
{
	my ($self, @path) = @_;

	$self->{at} = $path[-1];
	$self->{out} = '';
	$self->command("tbreak *$_\ncontinue") foreach @path;
	$self->command('info symbol $pc' . "\n" . 'echo --- stopped ---\n');
	return;
}

# The test fails if the session gets an answer before.
sub wait_until_stopped
{
	my ($self, $session) = @_;

	$self->read_until(qr/^--- stopped ---$/m, sub { $session->answered });
	$self->give_up("the backend is not held at $self->{at}") unless $self->{out} =~ /^\Q$self->{at}\E in section/m;
	return;
}

sub read_until
{
	my ($self, $mark, $otherwise) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;

	until ($self->{out} =~ $mark)
	{
		if ($self->{select}->can_read(0.1))
		{
			sysread $self->{stdout}, $self->{out}, 65536, length $self->{out}
			  or $self->give_up('gdb has ended');
		}
		elsif (($otherwise && $otherwise->()) || time > $deadline)
		{
			$self->give_up('gdb does not come to its end');
		}
	}
	return;
}

# What it holds goes on.
sub let_go
{
	my ($self) = @_;

	$self->{out} = '';
	$self->command('detach' . "\n" . 'echo --- detached ---\n');
	$self->read_until(qr/^--- detached ---$/m);
	$self->quit;
	return;
}

# What it holds has gone.
sub quit
{
	my ($self) = @_;

	return if !$self->{gdb};
	kill 'KILL', $self->{gdb};
	waitpid $self->{gdb}, 0;
	$self->{gdb} = undef;
	return;
}

sub DESTROY
{
	my ($self) = @_;

	local ($?, $@, $!);
	$self->quit;
	return;
}

1;
