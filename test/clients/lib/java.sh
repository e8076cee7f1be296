#!/usr/bin/env bash
# Runs the class of a source file, with what follows; JAVA_PATH has the classes.
set -euo pipefail
exec java -XX:TieredStopAtLevel=1 -cp "$JAVA_PATH" "$(basename "$1" .java)" "${@:2}"
