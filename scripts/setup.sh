#!/usr/bin/env bash
# Makes .venv with Barnabas installed in editable mode and all that its checks need. Idempotent: a second run is instant.
# On a fresh Debian machine it installs Python's venv module first, where it is root, and what builds the compiled module for records
# (without a compiler, its twin in Python is used). Usage: scripts/setup.sh [EXTRAS]; "dev" leaves PySpark out, which is large.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extras=${1:-dev,spark}
stamp="$root/.venv/.installed-$extras"

find_python() {
    # Debian's build is profile-guided and up to a third faster than others, so it goes first.
    for candidate in /usr/bin/python3.11 python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

is_newer() { # whether an input of the installation is newer than this stamp
    local input
    for input in pyproject.toml constraints.txt setup.py log/records/_native.pyx log/records/_writing.pxi log/records/_intake.pxi; do
        [ ! "$root/$input" -nt "$1" ] || return 0
    done
    return 1
}

can_compile() {
    command -v cc >/dev/null && "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

for made in "$stamp"*; do # of these extras, or of more
    if [ -f "$made" ] && ! is_newer "$made"; then
        exit 0
    fi
done
if ! python=$(find_python); then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq >&2 && apt-get install -y -qq python3 python3-venv >&2
        python=$(find_python)
    else
        echo "setup: needs Python 3.11 or later with venv. Install it: apt-get install python3 python3-venv" >&2
        exit 1
    fi
fi
if ! can_compile "$python" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev; } >&2 ||
        echo "setup: gcc and python3-dev could not be installed" >&2
fi
[ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
"$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --use-pep517 \
    -c "$root/constraints.txt" -e "$root[$extras]" >&2
"$root/.venv/bin/python" -P -c 'from barnabas.log.records.codec import IS_COMPILED; raise SystemExit(not IS_COMPILED)' ||
    echo "setup: records are read and written in Python, which is slower; with cc and python3-dev they are compiled" >&2
# Spark finds data sources by listing the folders of sys.path; an editable install is an import hook, which lists nothing.
"$root/.venv/bin/python" - "$root" <<'PYTHON'
import os, sys, sysconfig
for package in ("pyspark_barnabas", "pyspark_barnabas_postgres"):
    link = os.path.join(sysconfig.get_path("purelib"), package)
    if os.path.islink(link):
        os.remove(link)
    os.symlink(os.path.join(sys.argv[1], package), link)
PYTHON
# Static tools do not see setuptools' package mapping; this link shows them the tree under its installed name.
mkdir -p "$root/build/namespace"
ln -sfn ../.. "$root/build/namespace/barnabas"
touch "$stamp"
