# SVG charts by gnuplot: white ground, readable on a dark page too.
package Charts;
use strict;
use warnings;
use utf8;
use open ':std', ':encoding(UTF-8)';

my %colour = (ours => '0x2166ac', peer => '0xd6812a', floor => '0x8c8c8c', more => '0xc9d6e6');

# bars FILE TITLE UNIT LEGEND [WORDS, CLASS, VALUE, MORE]...: lying bars, MORE in a pale colour at the end of
# VALUE; a row of WORDS alone is a heading.  UNIT is a format of the number at the end, LEGEND
# has pairs of class and words.
sub bars {
	my ($file, $title, $unit, $legend, @rows) = @_;
	my ($y, $most, @data, @labels, @heads) = (0, 0);
	my $at = 2;
	for my $row (reverse @rows) {
		my ($words, $class, $value, $more) = @$row;
		$y++;
		if (!defined $class) {
			push @heads, "set label \"{/:Bold " . quoted($words) . "}\" at graph 0, first $y offset -1,0 right";
			next;
		}
		my $end = $value + ($more // 0);
		$most = $end if $end > $most;
		push @data, "0 $y 0 $value $colour{$class}\n", ($more ? "0 $y $value $end $colour{more}\n" : ());
		push @labels, "set label \"" . quoted(sprintf $unit, $end) . "\" at $end, $y offset 0.6,0 left";
		push @labels, "set label \"" . quoted($words) . "\" at graph 0, first $y offset -1,0 right";
	}
	while (my ($class, $words) = splice @$legend, 0, 2) {
		push @labels, "set label \"{/*1.3 ■}\" at character $at, character 1 textcolor rgb $colour{$class}",
			"set label \"" . quoted($words) . "\" at character @{[ $at + 2 ]}, character 1 textcolor rgb \"#444444\"";
		$at += 5 + length $words;
	}
	gnuplot($file, 860, ($at > 2 ? 102 : 74) + 25 * @rows, <<"END", join '', @data);
set title "@{[ quoted($title) ]}" font ",15" offset -14,0
set lmargin 42
set rmargin 9
set bmargin @{[ $at > 2 ? 4 : 2 ]}
set tmargin 2.5
set xrange [0:@{[ $most * 1.04 ]}]
set yrange [0.3:@{[ $y + 0.7 ]}]
unset ytics
set xtics out nomirror textcolor rgb "#666666"
set grid xtics lc rgb "#e4e4e4" lt 1
set border 1 lc rgb "#999999"
@{[ join "\n", @heads, @labels ]}
plot DATA using 1:2:3:4:(\$2-0.36):(\$2+0.36):5 with boxxyerror fs solid 1 noborder lc rgb variable notitle
END
}

# lines FILE TITLE XLABEL YLABEL XTICS [WORDS, CLASS, [X, Y]...]...: X on a logarithmic scale.
sub lines {
	my ($file, $title, $xlabel, $ylabel, $xtics, @series) = @_;
	my ($most, @plots, @data, @ends, @labels) = (0);
	my @x = sort { $a <=> $b } map { $_->[0] } map { @$_[ 2 .. $#$_ ] } @series;
	for my $series (@series) {
		my ($words, $class, @points) = @$series;
		push @data, join('', map { "$_->[0] $_->[1]\n" } @points) . "\n\n";
		push @plots, "DATA index $#data using 1:2 with linespoints lw 3 pt 7 ps 0.9 lc rgb $colour{$class} notitle";
		push @ends, [ @{ $points[-1] }, $words, $colour{$class} ];
		for (@points) { $most = $_->[1] if $_->[1] > $most }
	}
	# words at the ends of the lines, moved apart where lines end close to each other
	my $free = 0;
	for my $end (sort { $a->[1] <=> $b->[1] } @ends) {
		my ($x, $y, $words, $colour) = @$end;
		$y = $free if $y < $free;
		$free = $y + 0.07 * $most;
		push @labels, "set label \"" . quoted($words) . "\" at $x, $y offset 1,0 left textcolor rgb $colour";
	}
	gnuplot($file, 860, 380, <<"END", join '', @data);
set title "@{[ quoted($title) ]}" font ",15"
set rmargin 36
set tmargin 2.5
set logscale x
set xrange [@{[ $x[0] * 0.8 ]}:@{[ $x[-1] ]}]
set yrange [0:@{[ $most * 1.12 ]}]
set xtics ($xtics) out nomirror
set ytics out nomirror
set xlabel "@{[ quoted($xlabel) ]}"
set ylabel "@{[ quoted($ylabel) ]}" offset 1,0
set grid ytics lc rgb "#e4e4e4" lt 1
set border 3 lc rgb "#999999"
@{[ join "\n", @labels ]}
plot @{[ join ", \\\n", @plots ]}
END
}

# Within double quotes, where gnuplot knows marks of its own.
sub quoted {
	my ($text) = @_;
	$text =~ s/(["\\])/\\$1/g;
	$text =~ s/([_^{}@&~])/\\\\$1/g;
	return $text;
}

sub gnuplot {
	my ($file, $width, $height, $commands, $data) = @_;
	$commands =~ s/DATA/\$data/g;
	open my $out, '|-', 'gnuplot' or die "gnuplot: $!\n";
	print $out <<"END";
set terminal svg size $width,$height background rgb "#ffffff" font "Helvetica,Arial,sans-serif,13" enhanced
set encoding utf8
set output "$file"
\$data << EOD
${data}EOD
$commands
END
	close $out or die "gnuplot failed for $file\n";
	tidy($file, $commands =~ /^set title "((?:[^"\\]|\\.)*)"/m);
}

# The title for those who do not see the picture, and no white space at the ends of lines.
sub tidy {
	my ($file, $title) = @_;
	$title =~ s/\\//g;
	open my $in, '<:encoding(UTF-8)', $file or die "$file: $!\n";
	my $svg = do { local $/; <$in> };
	$svg =~ s{<title>Gnuplot</title>\s*<desc>.*?</desc>}{<title>$title</title>}s;
	$svg =~ s/[ \t]+$//mg;
	open my $out, '>:encoding(UTF-8)', $file or die "$file: $!\n";
	print $out $svg;
	close $out or die "$file: $!\n";
}

1;
