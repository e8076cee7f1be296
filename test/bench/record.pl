# Enters what was measured into the results, and prints it.
#
#   record.pl RESULTS fact NAME TEXT       what is the same for all: machine, date, version
#   record.pl RESULTS MEASURE UNIT [keep]  "form value" lines on standard input, one a round;
#                                          other forms of the measure go, or are kept
#   record.pl RESULTS goals FILE           prints the goals beside what was reached
#
# The second ends with 3 when a form is noisy.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Results;
use open ':std', ':encoding(UTF-8)';
use Encode qw(decode);

@ARGV = map { decode('UTF-8', $_) } @ARGV;
my ($file, $measure, @rest) = @ARGV;
my $results = Results->new($file);

sub print_goals {
	for my $goal (Results::goals($rest[0])) {
		my $reached = $results->ratio(@$goal{qw(measure form base)}) // next;
		printf "%-66s %8.4g   goal %s %s%s\n", $goal->{words}, $reached, @$goal{qw(sign limit)},
			$results->noisy(@$goal{qw(measure form)}) ? ', noisy' : '';
	}
}

sub print_measure {
	my ($base) = $results->forms($measure);
	print STDERR "\r", ' ' x 76, "\r" if -t STDERR;
	for my $form ($results->forms($measure)) {
		printf "%-18s %-20s %10.5g %-8s %8.3f  spread %2.0f %%%s\n", $measure, $form, $results->value($measure, $form),
			$results->row($measure, $form)->{unit}, $results->ratio($measure, $form, $base),
			100 * $results->spread($measure, $form), $results->noisy($measure, $form) ? ', noisy' : '';
	}
}

sub read_rounds {
	my (%rounds, @order);
	while (my $line = <STDIN>) {
		my ($form, $value) = split ' ', $line;
		die "$measure: no value of $form\n" unless defined $value && $value =~ /^[0-9.e+-]+$/;
		push @order, $form unless $rounds{$form};
		push @{ $rounds{$form} }, $value;
	}
	$results->forget($measure) unless $rest[1];
	$results->put($measure, $_, $rest[0], @{ $rounds{$_} }) for @order;
}

if ($measure eq 'goals') {
	print_goals();
}
elsif ($measure eq 'fact') {
	$results->{facts}{ $rest[0] } = $rest[1];
	$results->save;
}
else {
	read_rounds();
	$results->save;
	print_measure();
	exit 3 if grep { $results->noisy($measure, $_) } $results->forms($measure);
}
