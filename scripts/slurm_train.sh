#!/bin/bash
# Train under Slurm, and go on where the time limit or a preemption ended it: the job puts itself back into the queue.
#
#   sbatch --time=12:00:00 --gpus-per-node=4 --cpus-per-task=32 scripts/slurm_train.sh experiment=sft_lora hardware.gpus_per_node=4
#
# Arguments are those of `llmsys train`. Run folders of a job are in ${LLMSYS_OUTPUTS:-outputs}/slurm-JOBID/, so that
# the next start finds them. llmsys must be on PATH. Options given to sbatch win over the lines below; raise
# the seconds if a checkpoint takes longer to write. B: as llmsys starts the ranks, it alone tells them to stop.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@180
set -u

STOPPED=6  # exit code: stopped on request, with a checkpoint

outputs=${LLMSYS_OUTPUTS:-outputs}/slurm-$SLURM_JOB_ID
shopt -s nullglob
# checkpoints that are whole, of the run that was started last
whole=("$outputs"/*/*/checkpoints/step-*/whole.json)

# set before the training is there: a signal that comes in between is passed on below
told='' training=''
trap 'told=yes; [ -z "$training" ] || kill -TERM "$training"' TERM

if [ ${#whole[@]} -gt 0 ]; then
    llmsys train resume="${whole[-1]%/checkpoints/*}" &
else
    llmsys train "$@" paths.outputs="$outputs" &
fi
training=$!
[ -z "$told" ] || kill -TERM "$training"
wait "$training"
code=$?
# a signal ends the first wait and not the training
while kill -0 "$training" 2> /dev/null; do
    wait "$training"
    code=$?
done

# `scancel JOB` is meant: the checkpoint is there, and the job stays away. At a signal before the time limit or a
# preemption it runs still; where saving took longer than that, the limit is Slurm's reason.
is_wanted() {
    scontrol show job --oneliner "$SLURM_JOB_ID" | grep -qE ' JobState=RUNNING | Reason=TimeLimit '
}

if [ "$code" = "$STOPPED" ] && is_wanted; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
