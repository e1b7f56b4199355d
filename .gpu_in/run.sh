set -e
mkdir -p /tmp/site /tmp/w /tmp/t /tmp/s /tmp/nvme
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site PYTORCH_NVML_BASED_CUDA_CHECK=1 TORCH_CUDA_ARCH_LIST=9.0 OMP_NUM_THREADS=4 HF_HUB_OFFLINE=1
head -1 .gpu_in/s.jsonl > /tmp/w/one.jsonl; sed -n 4p .gpu_in/s.jsonl > /tmp/w/two.jsonl
AT_ONCE=1 python3 benchmarks/measure_training.py all /tmp/w/one.jsonl /tmp/w/o1.jsonl | tail -1
AT_ONCE=1 python3 benchmarks/measure_training.py all /tmp/w/two.jsonl /tmp/w/o2.jsonl | tail -1
AT_ONCE=9 timeout 330 python3 benchmarks/measure_training.py all .gpu_in/w.jsonl /tmp/w/out.jsonl > /tmp/w/log.txt 2>&1 || true
cp /tmp/w/out.jsonl $OUT/w_out.jsonl; tail -3 /tmp/w/log.txt
TRACE=1 AT_ONCE=9 timeout 80 python3 benchmarks/measure_training.py all .gpu_in/t.jsonl /tmp/t/out.jsonl > /tmp/t/log.txt 2>&1 || true
cp /tmp/t/out.jsonl $OUT/t_out.jsonl; tar cf $OUT/traces.tar -C /tmp/t/cases $(cd /tmp/t/cases; ls *.trace.gz)
tail -3 /tmp/t/log.txt
STEPS=6 AT_ONCE=1 timeout 300 python3 benchmarks/measure_training.py all .gpu_in/s.jsonl /tmp/s/out.jsonl 2>&1 | tail -12 || true
cp /tmp/s/out.jsonl $OUT/s_out.jsonl
ls -la $OUT
