#!/usr/bin/env bash
# Sets itself up and runs every check, then every test, for two cores. Other arguments go to pytest, in one process.
#   scripts/test.sh                           everything: what continuous integration runs
#   scripts/test.sh quick                     checks, unit tests, scenarios and tidiness: before every commit
#   scripts/test.sh long [SECONDS]            what finds new failures: fault campaigns, attacks, new seeds, mutants (600 s of each)
#   scripts/test.sh tests/unit -k retention   these tests
#
# The checks are quick and independent, so all of them run and each reports its findings; the tests run even if a check failed,
# so that the author of a change sees all failures at once. The exit code is 1 if anything failed.
# TEST_MINUTES=50 leaves out of a complete run what a slow machine has not begun by then (tests/two_ends.py), and names it.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
scripts/setup.sh || exit 1
export PATH="$root/.venv/bin:$PATH"
# Containers often forbid Python to keep compiled modules; then each of the hundreds of brokers that tests start compiles 470 of them.
unset PYTHONDONTWRITEBYTECODE
failed=()
# Folders of tests, apart from those of other runs: what a killed run has left must not fail this one. Kept where a test has failed.
PYTEST_DEBUG_TEMPROOT=$(mktemp -d "${TMPDIR:-/tmp}/barnabas-tests.XXXXXX")
export PYTEST_DEBUG_TEMPROOT

# Debian's packages that some tests need; where they cannot be installed, those tests are skipped and say so.
wanted=()
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || wanted+=(postgresql)           # a server of their own for some tests
command -v kcat >/dev/null || wanted+=(kcat)                                               # one of the clients that are tried
command -v zsh >/dev/null || wanted+=(zsh)                                                 # completes the command line
command -v fish >/dev/null || wanted+=(fish)
command -v chromium >/dev/null || wanted+=(chromium)                                       # shows the console
command -v prometheus >/dev/null || wanted+=(prometheus)                                   # checks metrics and alerts
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

checks() {
    stage "ruff check" ruff check .
    stage "ruff format" ruff format --check .
    stage "mypy" mypy
    stage "mypy tests" mypy tests/faults tests/integration tests/simulation tests/tidy tests/unit/net/admin tests/unit/net/cli
    stage "import contracts" env PYTHONPATH=build/namespace lint-imports --no-cache
    [ $# -gt 0 ] || stage "deploy" env BARNABAS_OPTIMIZE=1 scripts/check-deploy
}

builds() { # beside `checks`, as compilers and most of the checks use one core; what it says comes afterwards
    # What is compiled in wheels and in the image: the tests of those modules, with them.
    stage "compiled" env BARNABAS_OPTIMIZE=1 scripts/compiled pytest -q -n 2 \
        tests/unit/log tests/unit/net/handlers tests/unit/net/protocol \
        tests/unit/net/test_server.py tests/unit/net/test_framing.py tests/unit/net/test_fair_reads.py tests/unit/net/test_receive_buffer.py
    # Three brokers with clients on each other Python that the machine has; without one, its line says so.
    stage "other Pythons" env BARNABAS_OPTIMIZE=1 scripts/other-pythons smoke
    echo "$output"
    [ ${#failed[@]} -eq 0 ]
}

if [ $# -gt 0 ]; then
    checks "$@"
else
    builds >"$PYTEST_DEBUG_TEMPROOT/builds.log" 2>&1 &
    building=$!
    checks
    wait "$building" || failed+=("builds")
    cat "$PYTEST_DEBUG_TEMPROOT/builds.log"
fi

# Three at a time, also on larger machines: two with tests of real processes, which wait most of the time, and one with tests that
# compute. Brokers, Spark and the tests' clocks have been tried with two neighbours. More: add -n 8. How the tests are shared out
# stands in tests/two_ends.py.
together=(-n 3 --dist loadgroup --no-loadscope-reorder)

tests() {
    echo "pytest $*"
    pytest -q --durations=5 --durations-min=2 "$@"
}

tests_alone() { # those marked `alone`; only their files are read
    local files
    mapfile -t files < <(grep -rl --include="test_*.py" "mark\.alone(" tests)
    tests -m alone "${files[@]}"
}

long() { # a part of `scripts/test.sh long`, whose output is shown as it comes
    echo "$*"
    "$@" || failed+=("$*")
}

# Another order of sets in every run, the same in all processes of one; a failure that depends on it can be repeated.
export PYTHONHASHSEED=${PYTHONHASHSEED:-$RANDOM}
echo "PYTHONHASHSEED=$PYTHONHASHSEED"
case "${1:-}" in
"")
    if [ -n "${TEST_MINUTES:-}" ]; then
        TESTS_UNTIL=$(($(date +%s) - SECONDS + TEST_MINUTES * 60))
        export TESTS_UNTIL
    fi
    # First, as each of them is the only one of its kind: where time is short, the others have relatives among those that have run.
    tests_alone || failed+=("tests that run alone")
    tests "${together[@]}" -m "not alone" || failed+=("tests")
    ;;
quick)
    shift
    tests "${together[@]}" tests/unit tests/scenarios tests/tidy --ignore=tests/tidy/test_documents.py "$@" || failed+=("tests")
    ;;
long)
    seconds=${2:-600}
    seed=${SEED:-$RANDOM}
    long env BARNABAS_BOMBS_S=30 scripts/faults --seconds "$seconds" --seed "$seed"
    long env BARNABAS_BOMBS_S=30 scripts/faults --workload transactions --seconds "$seconds" --seed "$seed"
    long scripts/faults failover --kills $((seconds / 60 + 1)) --seed "$seed"
    long scripts/hostile
    long scripts/fuzz-records 200000 "$seed"
    long env BARNABAS_STORM_SECONDS="$seconds" BARNABAS_STORM_SEED="$seed" pytest -q tests/integration/test_transaction_storm.py
    long env BARNABAS_PGBENCH_KILLS=20 pytest -q tests/integration/test_pgbench_kills.py
    long env BARNABAS_CHAIN_KILLS=5 pytest -q tests/integration/test_spark_log_chain.py
    long env BARNABAS_LARGE_TRANSACTION=60000 pytest -q tests/integration/test_spark_large_transactions.py
    long env BARNABAS_LAKE_KILLS=1 pytest -q tests/integration/test_spark_pipeline_kills.py
    long env BARNABAS_SPARK_KILLS=6 pytest -q tests/integration/test_spark_kills.py
    long scripts/other-spark
    # The campaigns of which the complete run has only the first seeds.
    long env BARNABAS_SIMULATION_SEEDS=60 BARNABAS_SIMULATION_SECONDS="$seconds" BARNABAS_SHARE_SIMULATION_SEEDS=60 \
        BARNABAS_GROUP_SIMULATION_SEEDS=60 BARNABAS_GROUP_SIMULATION_SECONDS="$seconds" BARNABAS_PURE_SEEDS=1000 \
        BARNABAS_TRANSACTION_SEEDS=2000 BARNABAS_TXN_SEEDS=2000 BARNABAS_TRANSACTION_SIMULATION_SEEDS=60 \
        BARNABAS_TRANSACTION_SIMULATION_SECONDS="$seconds" BARNABAS_ANY_TURN_SAMPLE=1000 \
        pytest -q -n 2 --timeout 3600 tests/simulation/test_cluster.py tests/simulation/test_group_cluster.py \
        tests/simulation/test_share_cluster.py tests/simulation/test_transaction_cluster.py tests/simulation/test_pure_machines.py \
        tests/simulation/test_isr_transactions.py tests/simulation/test_any_turn.py \
        tests/unit/consumer_groups/test_transaction_simulation.py
    long scripts/simulate --seconds "$seconds" --jobs 2
    long scripts/simulate --groups --seconds "$seconds" --jobs 2
    long scripts/simulate --transactions --seconds "$seconds" --jobs 2
    long scripts/simulate --prepared --seconds "$seconds" --jobs 2
    long scripts/mutants --count $((seconds / 60 + 1)) --seed "$seed"
    ;;
*)
    tests "$@" || failed+=("tests")
    ;;
esac

if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    echo "folders of the tests: $PYTEST_DEBUG_TEMPROOT"
    exit 1
fi
rm -rf --one-file-system "$PYTEST_DEBUG_TEMPROOT"
echo "nothing failed in $SECONDS s"
