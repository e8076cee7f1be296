# Makes docs/performance.md and its charts of the results of test/bench/run.
#
#   make.pl RESULTS BENCH-FOLDER DOCS-FOLDER
#
# In page/template.md stand
#   {{fact NAME}}  {{value MEASURE FORM}}  {{ratio MEASURE FORM BASE}}  {{goals}}  {{chart NAME}}
#   {{table MEASURE [PEER]}}          its forms, of the first and of the peer
#   {{sizes MEASURE...}}              a measure a column, ratios to the first form of each
#   {{missed MEASURE FORM BASE}} … {{end}}   what stands there only if that goal is not reached
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/..", $FindBin::Bin;
use Results;
use Charts;
use utf8;
use open ':std', ':encoding(UTF-8)';

my ($file, $bench, $docs) = @ARGV;
my $results = Results->new($file);
my @goals = Results::goals("$bench/goals");
my %label = labels("$bench/page/labels");

sub labels {
	my ($name) = @_;
	open my $in, '<:encoding(UTF-8)', $name or die "$name: $!\n";
	return map { /^(\w+)\s+(\w+)\s+(.+)/ ? ($1 => { class => $2, words => $3 }) : () } <$in>;
}

sub words { return $label{ $_[0] } ? $label{ $_[0] }{words} : $_[0]; }
sub class { return $label{ $_[0] } ? $label{ $_[0] }{class} : 'peer'; }

# Three digits, as long as a reader wants them.
sub number {
	my ($n) = @_;
	return '–' unless defined $n;
	my $text = $n >= 100 ? sprintf('%.0f', $n) : $n >= 10 ? sprintf('%.1f', $n) : sprintf('%.2f', $n);
	1 while $text =~ s/^(\d+)(\d{3})/$1 $2/;
	return $text;
}

sub ratio {
	my ($measure, $form, $base) = @_;
	my $ratio = $results->ratio($measure, $form, $base);
	return !defined $ratio ? '–' : $ratio < 0.005 ? sprintf('%.5f', $ratio) : sprintf('%.2f', $ratio);
}

sub value {
	my ($measure, $form) = @_;
	my $row = $results->row($measure, $form) or return '–';
	return number($results->value($measure, $form)) . " $row->{unit}";
}

sub reached {
	my ($goal) = @_;
	my $ratio = $results->ratio(@$goal{qw(measure form base)}) // return;
	return $goal->{sign} eq '<=' ? $ratio <= $goal->{limit} + 0.005 * ($goal->{limit} > 0.1) : $ratio >= $goal->{limit} - 0.005;
}

sub goals_table {
	my @lines = ('| | measured | goal | |', '|---|---|---|---|');
	for my $goal (@goals) {
		my $reached = reached($goal) // next;
		push @lines, sprintf '| %s | %s%s | %s %s | %s |', $goal->{words}, ratio(@$goal{qw(measure form base)}),
			$results->noisy(@$goal{qw(measure form)}) ? ' (noisy)' : '',
			$goal->{sign} eq '<=' ? '≤' : '≥', $goal->{limit}, $reached ? 'reached' : '**not reached**';
	}
	return join "\n", @lines;
}

sub measure_table {
	my ($measure, $peer) = @_;
	my ($base) = $results->forms($measure) or return '(not measured)';
	my $unit = $results->row($measure, $base)->{unit};
	my @lines = ("| | $unit | of the first |" . ($peer ? ' of ' . words($peer) . ' |' : '') . ' spread |', '|---|---|---|---|' . ($peer ? '---|' : ''));
	for my $form ($results->forms($measure)) {
		my $words = class($form) eq 'ours' ? '**' . words($form) . '**' : words($form);
		push @lines, join ' ', "| $words |", number($results->value($measure, $form)), '|', ratio($measure, $form, $base), '|',
			($peer ? (ratio($measure, $form, $peer), '|') : ()),
			sprintf('%.0f %%', 100 * $results->spread($measure, $form)) . ($results->noisy($measure, $form) ? ', noisy' : ''), '|';
	}
	return join "\n", @lines;
}

# Several measures with the same forms, beside each other.
sub sizes_table {
	my @measures = @_;
	my ($base) = $results->forms($measures[0]) or return '(not measured)';
	my @lines = ('| |' . join('', map { ' ' . heading($_) . ' |' } @measures), '|---|' . '---|' x @measures);
	for my $form ($results->forms($measures[0])) {
		my $words = class($form) eq 'ours' ? '**' . words($form) . '**' : words($form);
		push @lines, "| $words |" . join '', map { sprintf ' %s (%s) |', value($_, $form), ratio($_, $form, $base) } @measures;
	}
	return join "\n", @lines;
}

sub heading {
	my ($measure) = @_;
	my $records = $results->{facts}{$measure};
	return number($records) . ' records' if $measure =~ /^growth_/;
	return $1 . ($1 == 1 ? ' client' : ' clients') . ($2 ? ', durable' : '') if $measure =~ /^clients_(\d+)(_durable)?$/;
	return { 200 => '200 B', 20000 => '20 kB', 1000000 => '1 MB' }->{$1} if $measure =~ /_(200|20000|1000000)$/;
	return { wal => 'no page images', wal_images => 'from a checkpoint on', wal_records => 'records',
		held_open => 'open', held_savepoint => 'in a savepoint', held_prepared => 'prepared' }->{$measure} // $measure;
}

# --- charts -------------------------------------------------------------------

sub bar { return [ words($_[1]), class($_[1]), $results->value(@_) ]; }

sub bars_of {
	my ($measure) = @_;
	return map { bar($measure, $_) } $results->forms($measure);
}

sub line {
	my ($form, $x, @measures) = @_;
	return [ words($form), class($form), map { [ $x->($_), $results->value($_, $form) ] } grep { $results->row($_, $form) } @measures ];
}

my %legend = (ours => 'idempotency', peer => 'by hand', floor => 'bare INSERT');

sub legend { return [ map { $_ => $legend{$_} } qw(ours peer floor) ]; }

sub chart_fresh {
	Charts::bars("$docs/performance/fresh.svg", 'A fresh key claimed and completed, one client (µs, less is better)', '%.0f µs', legend(), bars_of('fresh'));
}

sub chart_throughput {
	Charts::bars("$docs/performance/throughput.svg", '8 clients: claims completed per second (more is better)', '%.0f', legend(),
		['without waiting for the disk'], bars_of('clients_8'), ['with durable commits'], bars_of('clients_8_durable'));
}

sub chart_growth {
	my @measures = qw(growth_small growth_normal growth_large);
	my $tics = join ', ', map { my $n = $results->{facts}{$_}; $n ? '"' . number($n) . "\" $n" : () } @measures;
	my $records = sub { $results->{facts}{ $_[0] } };
	Charts::lines("$docs/performance/growth.svg", 'A claim while the table grows, one client', 'records in the table', 'µs', $tics,
		map { line($_, $records, @measures) } qw(bare_insert value peer_procedure));
}

sub chart_purge {
	my @turns;
	for my $form (qw(p99_alone p99_beside)) {
		my $turn = 0;
		push @{ $turns[ $turn++ ] }, [ words($form), class($form), $_ ] for @{ $results->row('purge', $form)->{rounds} };
	}
	Charts::bars("$docs/performance/purge.svg", '2000 claims a second, alone and beside a purge, turn by turn: 99th percentile (ms)', '%.2f ms', [], map { @$_ } @turns);
}

# The bytes of records, and in a paler colour what images of pages add.
sub chart_wal {
	my @rows;
	for my $form ($results->forms('wal')) {
		my $bare = $results->value('wal', $form);
		my $all = $results->value('wal_images', $form) // $bare;
		push @rows, [ words($form), class($form), $bare, $all > $bare ? $all - $bare : 0 ];
	}
	Charts::bars("$docs/performance/wal.svg", 'Bytes of WAL for a fresh key', '%.0f', [ @{ legend() }, more => 'images of pages' ], @rows);
}

my %charts = (fresh => [ \&chart_fresh, 'fresh' ], throughput => [ \&chart_throughput, 'clients_8' ], growth => [ \&chart_growth, 'growth_small' ],
	purge => [ \&chart_purge, 'purge' ], wal => [ \&chart_wal, 'wal' ]);

sub chart {
	my ($name) = @_;
	my ($draw, $measure) = @{ $charts{$name} };
	return '(not measured)' unless $results->forms($measure);
	$draw->();
	return "![$name](performance/$name.svg)";
}

# --- the page -----------------------------------------------------------------

sub filled_in {
	my ($what, @of) = split ' ', $_[0];
	my %fill = (fact => sub { $results->{facts}{ $_[0] } || '–' }, value => \&value, ratio => \&ratio, goals => \&goals_table, chart => \&chart,
		table => \&measure_table, sizes => \&sizes_table, count => sub { number($results->{facts}{ $_[0] }) });
	return ($fill{$what} // die "template: {{$_[0]}}\n")->(@of);
}

sub is_missed {
	my ($measure, $form, $base) = @_;
	my ($goal) = grep { $_->{measure} eq $measure && $_->{form} eq $form && $_->{base} eq $base } @goals;
	my $reached = reached($goal // die "no goal $measure $form $base\n");
	return defined $reached && !$reached;
}

mkdir "$docs/performance";
open my $in, '<:encoding(UTF-8)', "$bench/page/template.md" or die "template: $!\n";
my $page = do { local $/; <$in> };
$page =~ s/\{\{missed (\S+) (\S+) (\S+)\}\}\n(.*?)\{\{end\}\}\n/is_missed($1, $2, $3) ? $4 : ''/ges;
$page =~ s/\{\{if (\w+)\}\}\n(.*?)\{\{end\}\}\n/$results->{facts}{$1} ? $2 : ''/ges;
$page =~ s/\{\{(.*?)\}\}/filled_in($1)/ges;
open my $out, '>:encoding(UTF-8)', "$docs/performance.md" or die "$docs/performance.md: $!\n";
print $out $page;
close $out or die "$docs/performance.md: $!\n";
