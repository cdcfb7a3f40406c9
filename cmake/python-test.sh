#!/usr/bin/env bash
# Runs one pytest file for ctest: python-test.sh SOURCE_DIR FILE [ARGUMENT_OF_PYTEST...]. Exit status 77: skipped; prints the reason.
set -euo pipefail
python=$1/.venv/bin/python
if [[ ! -x $python ]]; then
  echo "SKIPPED: there is no .venv; run scripts/setup"
  exit 77
fi
exec "$python" "$1/cmake/python_test.py" "${@:2}"
