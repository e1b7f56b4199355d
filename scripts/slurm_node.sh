#!/usr/bin/env bash
# A Slurm of our own on this machine, for tests: munge, controller and node daemons, all kept in one folder.
#
#   scripts/slurm_node.sh start FOLDER [NODES]   starts it; then `export SLURM_CONF=FOLDER/slurm.conf`
#   scripts/slurm_node.sh stop FOLDER            ends its jobs and daemons; the folder stays
#
# Needs root and Debian's packages: apt-get install --no-install-recommends slurm-wlm munge. No systemd, no
# control groups, no database, so `sacct` knows nothing. The first node has the name of this machine; more are
# further daemons, each of which offers all cores again. A requeued job starts again after seconds, not minutes.
set -euo pipefail

WAIT_S=30

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }

free_ports() {  # COUNT
    python3 -c 'import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in held))' "$1"
}

node_names() {  # COUNT
    hostname
    for ((number = 2; number <= $1; number++)); do echo "$(hostname)-$number"; done
}

start_munge() {
    mkdir -m 755 munge
    (umask 077 && head -c 128 /dev/urandom > munge/key)
    munged --socket="$PWD/munge/socket" --key-file="$PWD/munge/key" --pid-file="$PWD/munge/pid" \
        --log-file="$PWD/munge/log" --seed-file="$PWD/munge/seed"
}

write_conf() {  # NODES
    local name memory ports
    memory=$(awk '/^MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    read -ra ports <<< "$(free_ports $(($1 + 1)))"
    # a requeued job waits until the credential of its first start has expired, by default two minutes
    cat > slurm.conf <<CONF
ClusterName=llmsys
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmctldPort=${ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$PWD/munge/socket,cred_expire=5
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool-%n
SlurmctldPidFile=$PWD/controller.pid
SlurmdPidFile=$PWD/node-%n.pid
SlurmctldLogFile=$PWD/controller.log
SlurmdLogFile=$PWD/node-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000
KillWait=60
CONF
    local at=1
    for name in $(node_names "$1"); do
        mkdir "spool-$name"
        echo "NodeName=$name NodeAddr=127.0.0.1 Port=${ports[at]} CPUs=$(getconf _NPROCESSORS_ONLN) RealMemory=$memory" >> slurm.conf
        at=$((at + 1))
    done
    echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >> slurm.conf
}

start() {  # FOLDER [NODES]
    local nodes=${2:-1} name
    mkdir -p "$1" && cd "$1"
    mkdir state
    write_conf "$nodes"
    export SLURM_CONF=$PWD/slurm.conf
    start_munge
    slurmctld
    for name in $(node_names "$nodes"); do slurmd -N "$name"; done
    for ((waited = 0; waited < WAIT_S * 5; waited++)); do
        if [ "$(sinfo --noheader --Node --states=idle --format=%N 2> /dev/null | wc -l)" = "$nodes" ]; then
            return
        fi
        sleep 0.2
    done
    echo "Slurm did not start within $WAIT_S s; see the logs in $PWD" >&2
    stop "$PWD"
    exit 1
}

stop() {  # FOLDER
    cd "$1"
    export SLURM_CONF=$PWD/slurm.conf
    local pids=() file
    if [ -f controller.pid ]; then
        # all processes of the jobs at once, rather than after the time that Slurm grants them
        scancel --full --signal=KILL --state=RUNNING --partition=all 2> /dev/null || true
        scancel --partition=all 2> /dev/null || true
    fi
    for ((waited = 0; waited < 25; waited++)); do
        [ -n "$(squeue --noheader 2> /dev/null)" ] || break
        sleep 0.2
    done
    for file in controller.pid node-*.pid munge/pid; do
        if [ -f "$file" ]; then pids+=("$(cat "$file")"); fi
    done
    end "${pids[@]}"
}

end() {  # PROCESS ...
    kill "$@" 2> /dev/null || true
    for ((waited = 0; waited < 20; waited++)); do
        [ $# -gt 0 ] && kill -0 "$1" 2> /dev/null || break
        sleep 0.1
    done
    # nothing that the controller would still write is needed
    kill -KILL "$@" 2> /dev/null || true
}

case ${1:-} in
    start)
        { [ $# -eq 2 ] || [ $# -eq 3 ]; } || usage
        start "${@:2}"
        ;;
    stop)
        [ $# -eq 2 ] || usage
        stop "$2"
        ;;
    *) usage ;;
esac
