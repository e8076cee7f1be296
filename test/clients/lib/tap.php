<?php
// TAP for the client in PHP: check(name, got, wanted), raised(work), done().
$count = $bad = 0;

function check(string $name, $got, $wanted = true): void
{
    global $count, $bad;
    $good = $got === $wanted;
    $bad += $good ? 0 : 1;
    echo $good ? 'ok' : 'not ok', ' ', ++$count, " - $name\n";
    if (!$good) {
        echo '# got ', json_encode($got), ', wanted ', json_encode($wanted), "\n";
    }
}

// The PDOException that the work ends with.
function raised(callable $work): PDOException
{
    try {
        $work();
    } catch (PDOException $error) {
        return $error;
    }
    return new PDOException('nothing was raised');
}

function done(): void
{
    global $count, $bad;
    echo "1..$count\n";
    exit($bad > 0 ? 1 : 0);
}
