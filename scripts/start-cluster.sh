#!/usr/bin/env bash
# Starts N broker processes (default 3) in the background and returns when acks=all can be acknowledged.
#   scripts/start-cluster.sh [N] [DIR] [options of `barnabas up`, e.g. --port 0]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup.sh" dev
count=3 folder=barnabas-data
case ${1:-} in -h | --help) sed -n '2,3s/^# //p' "$0"; exit 0 ;; esac
if [[ ${1:-} =~ ^[^-] ]]; then count=$1; shift; fi
if [[ ${1:-} =~ ^[^-] ]]; then folder=$1; shift; fi
exec "$root/.venv/bin/barnabas" up --detach -n "$count" --dir "$folder" "$@"
