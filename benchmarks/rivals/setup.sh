#!/usr/bin/env bash
# Makes a throw-away environment with the rivals, pinned. Nothing here is installed into .venv.
#
#   benchmarks/rivals/setup.sh VENV_DIR
#   VENV_DIR/bin/python -m benchmarks.rivals.run > benchmarks/results/rivals-DATE.jsonl
#
# torch is needed by DeepSpeed's and accelerate's estimators only; a CPU build does.
set -euo pipefail

venv=${1:?"usage: $0 VENV_DIR"}
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
  fitcheck-llm==0.3.1 vramcalc==0.1.2 canifinetune==0.4.1 ftuneai==0.4.1 \
  deepspeed==0.19.8 accelerate==1.15.0 transformers==5.23.0 torch==2.13.0
"$venv/bin/python" -c 'import fitcheck, vramcalc, canifinetune, ftuneai, accelerate, transformers, torch'
echo "Ready: $venv" >&2
