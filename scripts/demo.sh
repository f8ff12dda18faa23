#!/usr/bin/env bash
# The main job, shown on real processes: three brokers, a replicated topic, a web server log, a kill -9, nothing lost.
# Usage: scripts/demo.sh [FILE]   FILE: lines to stream; else ../shared/data/apache_access.log; else generated lines.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup.sh" dev
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
