# TAP for the client in Ruby: check(name, got, wanted), raised(kind) { ... }, done.
$count = $bad = 0

def check(name, got, wanted = true)
  $count += 1
  good = got == wanted
  $bad += 1 unless good
  puts "#{good ? 'ok' : 'not ok'} #{$count} - #{name}"
  puts "# got #{got.inspect}, wanted #{wanted.inspect}" unless good
end

def raised(kind)
  yield
  nil
rescue kind => error
  error
end

def done
  puts "1..#{$count}"
  exit($bad.zero?)
end
