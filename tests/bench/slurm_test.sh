#!/usr/bin/env bash
# slurm_test.sh MOTLEY SOURCE_FOLDER: examples/cluster/slurm.sbatch in a real Slurm.
#
# Debian's slurm-wlm and munge, with a key, a configuration, two nodes and a spool that exist only
# for this test: nothing outside of a temporary folder is read or written. A job runs to its end; a
# second one gets the signal that Slurm sends before the time is up, and a third goes on with it.
# Needs root, because slurmd does.
set -euo pipefail
motley=$(realpath "$1")
source=$(realpath "$2")

skip() {
  echo "slurm_test: $1" >&2
  if [ "${CI:-}" = true ]; then exit 1; fi
  exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root"
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || skip "there is no $program: scripts/setup.sh --tests"
done

work=$(mktemp -d)
daemons=()
finish() {
  local code=$?
  trap - EXIT
  # Slurm first: it needs munge to stop in order.
  for ((i = ${#daemons[@]} - 1; i >= 0; --i)); do
    kill "${daemons[i]}" 2>/dev/null || true
    for ((n = 0; n < 100; ++n)); do
      kill -0 "${daemons[i]}" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "${daemons[i]}" 2>/dev/null || true
  done
  wait
  left=$(left_over)
  if [ -n "$left" ]; then
    echo "slurm_test: processes are left: $left" >&2
    # shellcheck disable=SC2086
    kill -9 $left 2>/dev/null || true
    code=1
  fi
  if [ "$code" != 0 ]; then
    tail -n 30 "$work"/*.log "$work"/*.out >&2 || true
  fi
  rm -rf "$work"
  exit "$code"
}

# Everything that this test started knows the configuration by its environment.
left_over() {
  for folder in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null <"$folder/environ" | grep -qx "SLURM_CONF=$work/slurm.conf"; then
      echo -n "${folder#/proc/} "
    fi
  done
}

fail() {
  echo "slurm_test: $1" >&2
  exit 1
}

# wait_until SECONDS WHAT COMMAND...: runs the command until it succeeds.
wait_until() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "no end of waiting until $what"
    sleep 0.2
  done
}

free_port() {
  python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

configure() {
  chmod 711 "$work" # munge wants its socket to be reachable for everybody
  mkdir -p "$work"/{bin,state,spool-node1,spool-node2}
  ln -s "$motley" "$work/bin/motley"
  (umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
  local host
  host=$(hostname -s)
  cat >"$work/slurm.conf" <<CONF
ClusterName=throwaway
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=1 State=UNKNOWN
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
CONF
  cat >"$work/job.toml" <<'JOB'
[model]
zoo = "lenet"
[data]
train = "glyphs"
[train]
batch = 256
learning_rate = 0.02
tune = "off"
JOB
}

start_slurm() {
  export SLURM_CONF=$work/slurm.conf PATH=$work/bin:$PATH HOME=$work
  munged --foreground --key-file "$work/munge.key" --socket "$work/munge.socket" \
    --pid-file "$work/munge.pid" --log-file "$work/munge.log" --seed-file "$work/munge.seed" \
    >"$work/munged.log" 2>&1 &
  daemons+=($!)
  wait_until 20 "munge listens" test -S "$work/munge.socket"
  slurmctld -D >/dev/null 2>&1 &
  daemons+=($!)
  for node in node1 node2; do
    slurmd -D -N "$node" >/dev/null 2>&1 &
    daemons+=($!)
  done
  wait_until 60 "both nodes are idle" nodes_idle
}
nodes_idle() { [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" = 2 ]; }

# submit ARGUMENT...: the number of the job.
submit() {
  sbatch --parsable --chdir "$work" --output "$work/job-%j.out" --cpus-per-task=1 "$@"
}

ended() { ! squeue -h -j "$1" -o %T | grep -q .; }

# expect_state JOB STATE
expect_state() {
  wait_until 120 "job $1 has ended" ended "$1"
  local state
  state=$(scontrol show job "$1" | grep -o 'JobState=[A-Z_]*')
  [ "$state" = "JobState=$2" ] || fail "job $1: $state, not $2"
}

# check_summary RUN PYTHON: whether the expression holds for the summary `s`.
check_summary() {
  python3 - "$work/$1/summary.json" "$2" <<'PYTHON'
import json, sys
s = json.load(open(sys.argv[1]))
assert eval(f"({sys.argv[2]})"), f"{sys.argv[2]} does not hold: {s}"
PYTHON
}

steps_done() { grep -q '"event":"step"' "$work/$1/events.jsonl"; }

trap finish EXIT
configure
start_slurm
script=$source/examples/cluster/slurm.sbatch

echo "a job from its beginning to its end"
first=$(MOTLEY_TRAIN_EPOCHS=2 submit "$script" "$work/job.toml")
expect_state "$first" COMPLETED
check_summary "runs/slurm-$first" \
  's["stop"] == "epochs" and s["samples"] == 16000 and s["steps"] == 64 and len(s["devices"]) == 2
   and all(d["samples"] > 0 for d in s["devices"]) and s["accuracy"] > 0.5'

echo "a job whose time is up"
second=$(MOTLEY_TRAIN_EPOCHS=100000 submit "$script" "$work/job.toml")
wait_until 60 "job $second trains" steps_done "runs/slurm-$second"
scancel --signal=TERM "$second" # what --signal=TERM@60 does in time
wait_until 60 "job $second has ended" ended "$second"
check_summary "runs/slurm-$second" 's["stop"] == "interrupted"'

echo "a job that goes on with it"
epochs=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["epochs"] + 1)' "$work/runs/slurm-$second/summary.json")
third=$(RUN=runs/slurm-$second MOTLEY_TRAIN_EPOCHS=$epochs submit "$script" "$work/job.toml")
expect_state "$third" COMPLETED
check_summary "runs/slurm-$second" "s['stop'] == 'epochs' and s['samples'] == 8000 * $epochs"
grep -q '"resumed":true' "$work/runs/slurm-$second/events.jsonl" || fail "it began anew"

[ -z "$(squeue -h)" ] || fail "jobs are left: $(squeue -h)"
echo "everything holds"
