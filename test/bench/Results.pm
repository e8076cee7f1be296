# The results of test/bench: .tmp/bench/results.tsv.  One line a measure and form:
# measure, form, unit, value, spread, noisy, and the values of all rounds.
package Results;
use strict;
use warnings;

sub new {
	my ($class, $file) = @_;
	my $self = bless { file => $file, rows => {}, order => [], facts => {} }, $class;
	open my $in, '<:encoding(UTF-8)', $file or return $self;
	while (my $line = <$in>) {
		chomp $line;
		if ($line =~ /^# (\w+)\t(.*)/) {
			$self->{facts}{$1} = $2;
		}
		elsif ($line !~ /^(#|measure\t)/) {
			my ($measure, $form, $unit, undef, undef, undef, $rounds) = split /\t/, $line;
			$self->put($measure, $form, $unit, split /,/, $rounds);
		}
	}
	return $self;
}

sub put {
	my ($self, $measure, $form, $unit, @rounds) = @_;
	push @{ $self->{order} }, [ $measure, $form ] unless $self->{rows}{$measure}{$form};
	$self->{rows}{$measure}{$form} = { unit => $unit, rounds => \@rounds };
}

sub forget {
	my ($self, $measure) = @_;
	delete $self->{rows}{$measure};
	$self->{order} = [ grep { $_->[0] ne $measure } @{ $self->{order} } ];
}

sub forms {
	my ($self, $measure) = @_;
	return map { $_->[1] } grep { $_->[0] eq $measure } @{ $self->{order} };
}

# "MEASURE/FORM" names a row; within MEASURE, FORM does.
sub row {
	my ($self, $measure, $form) = @_;
	return unless defined $form;	# nothing of the measure has been measured
	($measure, $form) = split m{/}, $form if $form =~ m{/};
	return $self->{rows}{$measure}{$form};
}

# Its ratio to the first form of the measure, as a value of the median round of that: the machine is now
# faster, now slower, and two medians may be of different minutes.
sub value {
	my ($self, $measure, $form) = @_;
	($measure, $form) = split m{/}, $form if $form =~ m{/};
	my $row = $self->row($measure, $form) or return;
	my ($base) = $self->forms($measure);
	my $first = quantile(0.5, @{ $self->row($measure, $base)->{rounds} });
	my $ratio = $form eq $base ? 1 : $self->ratio($measure, $form, $base);
	return defined $ratio ? $first * $ratio : quantile(0.5, @{ $row->{rounds} });
}

# The rounds of a row, each divided by that round of the base.
sub ratios {
	my ($self, $measure, $form, $base) = @_;
	return unless defined $base;
	if ($base =~ /(\w+):(\w+)/) {
		# the machine may have been faster then
		my $then = $self->ratio($1, $2, ($self->forms($1))[0]) or return;
		return map { $_ / $then } $self->ratios($measure, $form, ($self->forms($measure))[0]);
	}
	my ($row, $other) = ($self->row($measure, $form), $self->row($measure, $base));
	return unless $row && $other;
	my @bases = @{ $other->{rounds} };
	# rounds of another measure were not made in turn with these
	@bases = (quantile(0.5, @bases)) x @{ $row->{rounds} } if @bases != @{ $row->{rounds} } || $base =~ m{/};
	return map { $bases[$_] ? $row->{rounds}[$_] / $bases[$_] : () } 0 .. $#bases;
}

sub ratio { return quantile(0.5, ratios(@_)); }

# Of its ratios to the base or, of the base itself, of its values: the middle half by the median.
sub spread {
	my ($self, $measure, $form) = @_;
	my ($base) = $self->forms($measure);
	my @of = $form eq $base ? @{ $self->row($measure, $form)->{rounds} } : $self->ratios($measure, $form, $base);
	my $median = quantile(0.5, @of) or return 0;
	return (quantile(0.75, @of) - quantile(0.25, @of)) / $median;
}

sub noisy { return spread(@_) > 0.15; }

sub quantile {
	my ($share, @values) = @_;
	@values = sort { $a <=> $b } @values or return;
	my $place = $share * $#values;
	my $below = int $place;
	return $values[$below] + ($place - $below) * (($values[ $below + 1 ] // $values[$below]) - $values[$below]);
}

sub save {
	my ($self) = @_;
	open my $out, '>:encoding(UTF-8)', "$self->{file}.new" or die "$self->{file}.new: $!\n";
	print $out "# $_\t$self->{facts}{$_}\n" for sort keys %{ $self->{facts} };
	print $out join("\t", qw(measure form unit value spread noisy rounds)), "\n";
	for (@{ $self->{order} }) {
		my ($measure, $form) = @$_;
		my $row = $self->row($measure, $form);
		print $out join("\t", $measure, $form, $row->{unit}, sprintf('%.6g', $self->value($measure, $form)),
			sprintf('%.3f', $self->spread($measure, $form)), $self->noisy($measure, $form) ? 'noisy' : '',
			join(',', @{ $row->{rounds} })), "\n";
	}
	close $out or die "$self->{file}: $!\n";
	rename "$self->{file}.new", $self->{file} or die "$self->{file}: $!\n";
}

# The goals, as rows of measure, form, base, sign, limit, words.
sub goals {
	my ($file) = @_;
	open my $in, '<:encoding(UTF-8)', $file or die "$file: $!\n";
	return map { /^(\S+)\s+(\S+)\s+(\S+)\s+([<>]=)(\S+)\s+(.+)/ ? { measure => $1, form => $2, base => $3, sign => $4, limit => $5, words => $6 } : () }
		grep { !/^#/ } <$in>;
}

1;
