# Prints the programs that shell scripts call, as FILE:LINE: NAME, and with
# --functions the functions they define, a NAME a line.
#
#   perl programs.pl [--functions] FILE...
#
# It reads as much of the shell's grammar as tells where a command stands: what
# is quoted, a here-document, a pattern or a list of words is none.  A name that
# a variable holds is not seen.

use strict;
use warnings;

my $functions = @ARGV && $ARGV[0] eq '--functions' && shift;
my $stays = qr/^(?:if|then|else|elif|while|until|do|time|!|\{)$/;
# what is followed by a command, after options and numbers; "step" also by words
my $passes_on = qr/^(?:exec|env|xargs|nohup|setsid|setpriv|retry|step|as_server|has)$/;
my $file;

for my $path (@ARGV)
{
	open my $in, '<', $path or die "$path: $!";
	$file = $path;
	my $text = do { local $/; <$in> };
	# here-documents: their lines are emptied, so that numbers stay
	$text =~ s{(<<-?\s*(['"]?)(\w+)\2[^\n]*\n)(.*?\n)(\t*\3\n)}{$1 . ("\n" x ($4 =~ tr/\n//)) . "\n"}gse;
	commands($text, 0, '');
}

# commands TEXT OFFSET CLOSING: reads up to CLOSING; returns where it stopped.
sub commands
{
	my ($code, $from, $closing) = @_;
	my ($expected, $passing, $depth, @case) = (1, 0, 0);

	pos($code) = $from;
	while (pos($code) < length $code)
	{
		if ($code =~ /\G(?:[ \t]|\\\n)+/gc) { next }
		if ($code =~ /\G#[^\n]*/gc) { next }
		if (@case && $case[-1] == 1 && $code =~ /\G\s*esac\b/gc) { pop @case; $expected = 0; next }
		if (@case && $case[-1] == 1 && $code =~ /\G\s*\(?(?:"[^"]*"|[^)\n"])+\)/gc) { $case[-1] = 2; $expected = 1; next }
		if ($code =~ /\G;;/gc) { $case[-1] = 1 if @case; next }
		if ($closing && !$depth && $code =~ /\G\Q$closing\E/gc) { return pos $code }
		if ($code =~ /\G\[\[.*?\]\]/gcs) { $expected = 0; next }
		if ($code =~ /\G\(\(.*?\)\)/gcs) { $expected = 0; next }
		if ($code =~ /\G(?:[0-9]*(?:<<<|<<-?|>>|>&|<&|&>|>\||<(?!\()|>(?!\())\s*)/gc) { word(\$code); next }
		if ($code =~ /\G[<>]?\(/gc) { $depth++; $expected = 1; $passing = 0; next }
		if ($code =~ /\G\)/gc) { $depth--; $expected = 0; next }
		if ($code =~ /\G[\n;&|]+/gc) { $expected = 1; $passing = 0; next }
		my $at = pos $code;
		my $word = word(\$code);
		if ($word eq '') { $code =~ /\G./gcs; next }
		if ($code =~ /\G\(\)/gc) { print "$word\n" if $functions; $expected = 1; next }
		if ($word eq 'case' && $expected) { $code =~ /\G.*?\bin\b/gcs; push @case, 1; next }
		if ($word eq 'esac' && $expected) { pop @case; $expected = 0; next }
		next if !$expected || $word =~ $stays || $word =~ /^\w+(?:\[.*?\])?\+?=/;
		if ($word eq 'for') { $code =~ /\G\s*(?:\(\(.*?\)\)|\w+(?:\s+in\b)?)/gcs; $expected = 0; next }
		if ($word =~ $passes_on) { $passing = $word eq 'step' ? 2 : 1 }
		elsif ($passing && $word =~ /^\?/) { $expected = 0 if --$passing == 0; next }
		elsif ($passing && $word !~ /^[a-z_][\w.+-]*$/) { next }
		else { $expected = 0 }
		printf "%s:%d: %s\n", $file, 1 + (substr($code, 0, $at) =~ tr/\n//), $word
		  if !$functions && $word =~ /^[a-z_][\w.+-]*$/;
	}
	return pos $code // length $code;
}

# One word, with the commands inside it; what is quoted stands as "?".
sub word
{
	my ($code) = @_;
	my $word = '';

	while (1)
	{
		if ($$code =~ /\G'[^']*'/gcs) { $word .= '?' }
		elsif ($$code =~ /\G\\./gcs) { $word .= '?' }
		elsif ($$code =~ /\G"/gc) { quoted($code); $word .= '?' }
		elsif ($$code =~ /\G\$\(\(/gc) { $$code =~ /\G.*?\)\)/gcs; $word .= '?' }
		elsif ($$code =~ /\G\$\(/gc) { pos($$code) = commands($$code, pos $$code, ')'); $word .= '?' }
		elsif ($$code =~ /\G(\$\{(?:[^{}]|(?1))*\})/gcs) { $word .= '?' }
		elsif ($$code =~ /\G\$?[^\s'"\\\$;&|()<>]+/gc) { $word .= substr $$code, $-[0], $+[0] - $-[0] }
		elsif ($$code =~ /\G\$/gc) { $word .= '?' }
		elsif ($word =~ /=$/ && $$code =~ /\G\(/gc) { words($code) }
		else { last }
	}
	return $word;
}

# The rest of a list of words.
sub words
{
	my ($code) = @_;
	until ($$code =~ /\G\s*\)/gc || pos($$code) >= length $$code)
	{
		$$code =~ /\G\s+/gc or word($code) ne '' or $$code =~ /\G./gcs;
	}
	return;
}

# The rest of what stands in double quotes.
sub quoted
{
	my ($code) = @_;
	until ($$code =~ /\G"/gc || pos($$code) >= length $$code)
	{
		if ($$code =~ /\G\$\(\(/gc) { $$code =~ /\G.*?\)\)/gcs }
		elsif ($$code =~ /\G\$\(/gc) { pos($$code) = commands($$code, pos $$code, ')') }
		elsif ($$code =~ /\G(\$\{(?:[^{}]|(?1))*\})/gcs) { }
		else { $$code =~ /\G(?:\\.|.)/gcs }
	}
	return;
}
