#!/usr/bin/env bash
# Sets itself up and runs every check, then every test. Arguments go to pytest: scripts/test.sh tests/unit -k retention
#
# The checks are quick and independent, so all of them run and each says what it found; the tests run even where a check
# failed, because whoever sent a change wants to hear everything at once. The exit code is 1 if anything failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
scripts/setup.sh || exit 1
export PATH="$root/.venv/bin:$PATH"
failed=()

# Debian's packages that some tests need; where they cannot be installed, those tests are skipped and say so.
wanted=()
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || wanted+=(postgresql)           # a server of their own for some tests
command -v kcat >/dev/null || wanted+=(kcat)                                               # one of the clients that are tried
command -v java >/dev/null || [ -n "${JAVA_HOME:-}" ] || wanted+=(openjdk-17-jre-headless) # for Spark
if [ ${#wanted[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    if [[ " ${wanted[*]} " == *" postgresql "* ]]; then
        # Without this line Debian starts a server for the whole machine.
        mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    apt-get update -qq >&2
    for package in "${wanted[@]}"; do
        apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "$package" >&2 ||
            echo "$package could not be installed; its tests are skipped" >&2
    done
fi

stage() {
    local name=$1 started=$SECONDS
    shift
    if output=$("$@" 2>&1); then
        echo "ok      $name ($((SECONDS - started)) s)"
    else
        echo "$output"
        echo "FAILED  $name ($((SECONDS - started)) s)"
        failed+=("$name")
    fi
}

stage "ruff check" ruff check .
stage "ruff format" ruff format --check .
stage "mypy" mypy
stage "mypy tests" mypy tests/faults tests/integration tests/simulation tests/tidy tests/unit/net/admin tests/unit/net/cli
stage "import contracts" env PYTHONPATH=build/namespace lint-imports --no-cache

# Another order of sets in every run; a failure that depends on it can be repeated.
export PYTHONHASHSEED=${PYTHONHASHSEED:-$RANDOM}
echo "PYTHONHASHSEED=$PYTHONHASHSEED"
echo "tests"
if ! pytest -q --durations=5 --durations-min=2 "$@"; then
    failed+=("tests")
fi

if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
echo "all passed in $SECONDS s"
