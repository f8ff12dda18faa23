#!/usr/bin/env bash
# Stops the cluster that runs from DIR (default ./barnabas-data): controlled shutdown, then force for what hangs.
#   scripts/stop-cluster.sh [DIR]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup.sh" dev
exec "$root/.venv/bin/barnabas" down --dir "${1:-barnabas-data}"
