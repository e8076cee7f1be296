# A client that makes orders through psql and asks again, with the same key, until it
# is answered.  Some keys are made by several clients at once.
#
#   client.pl PSQL PORT FOLDER NUMBER
#
# Client 0 stays in each of its transactions for a while.  Writes acked.N (tenant and
# key of each answer), calls.N and errors.N into the folder, and ends when there is a
# file "stop" in it.

use strict;
use warnings;

use IPC::Open2;
use Time::HiRes qw(sleep time);

my ($psql, $port, $folder, $number) = @ARGV;
my ($in, $out, $pid);
my $calls = 0;

$SIG{PIPE} = 'IGNORE';
srand $number;

sub connect_again
{
	waitpid $pid, 0 if $pid;
	$pid = open2($out, $in, 'sh', '-c', 'exec "$@" 2>/dev/null', 'sh', $psql, '-XAtq', '-h', '127.0.0.1', '-p', $port, '-U', 'postgres', 'postgres');
	$in->autoflush(1);
	return;
}

# The value of a statement and its SQLSTATE; "lost" if the connection is.
sub ask
{
	my ($sql) = @_;
	my $value = '';

	connect_again() unless $pid;
	print $in "$sql;\n\\echo == :SQLSTATE\n";
	while (defined(my $line = <$out>))
	{
		chomp $line;
		return ($value, $1) if $line =~ /^== (.*)/;
		$value .= $line;
	}
	connect_again();
	return ('', 'lost');
}

# Under a lease; an answer that was lost is asked for again.
sub in_two
{
	my ($tenant, $key) = @_;
	my ($value, $state) = ask("SELECT begin_order('$tenant', '$key', 'client $number')");

	return ($value, $state) unless $value =~ /"fence": (\d+)/;
	return ask("SELECT end_order('$tenant', '$key', $1)");
}

open my $acked, '>', "$folder/acked.$number" or die;
open my $errors, '>', "$folder/errors.$number" or die;
my $n = 0;
my $stop = $number ? '' : 'for a while';

until (-e "$folder/stop")
{
	my $tenant = 1 + int rand 24;
	$tenant = sprintf '00000000-0000-0000-0000-%012d', $tenant if ($ENV{TENANT_TYPE} || '') eq 'uuid';
	# the same keys for all clients in about the same order
	my $key = (++$n % 5 ? 'k' : 'in two ') . int($n / 5) . '-' . int rand 8;
	my $again = 0;

	until (-e "$folder/stop")
	{
		my ($value, $state) = $n % 5 ? ask("SELECT create_order('$tenant', '$key', '{\"n\": 1}', '$stop')") : in_two($tenant, $key);
		$calls++;
		if ($state eq '00000' && $value ne '')
		{
			print $acked "$tenant\t$key\n";
			last;
		}
		print $errors "$state\n";
		$again = 20 if ++$again > 20;
		sleep 0.01 * rand() * $again;
	}
}
open my $count, '>', "$folder/calls.$number" or die;
print $count "$calls\n";
