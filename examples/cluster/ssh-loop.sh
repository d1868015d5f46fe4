#!/usr/bin/env bash
# ssh-loop.sh JOB HOST…: serves JOB on this machine and starts one worker on every HOST.
#
# `motley` must be on the PATH of every machine, and ssh must not ask for a password. The token goes
# through ssh's standard input, so it stands in no list of processes. Ctrl-C writes a checkpoint and
# ends everything; `motley serve --resume RUN` goes on.
set -euo pipefail
if (($# < 2)); then
  echo "usage: $0 JOB HOST…" >&2
  exit 2
fi
job=$1
shift
port=${PORT:-7600}
run=${RUN:-runs/$(date +%Y%m%d-%H%M%S)-ssh}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

motley serve "$job" --out "$run" --listen "0.0.0.0:$port" --token-file "$folder/token" \
  --set "cluster.min_workers=$#" &
server=$!
trap : INT # the server sees it as well
trap 'kill -TERM "$server"' TERM
until [[ -s $folder/token ]]; do
  kill -0 "$server" 2>/dev/null || { wait "$server"; exit 1; }
  sleep 0.2
done

# On the other machine. ssh tells it under which address it sees this one.
# shellcheck disable=SC2016
remote='host=${SSH_CONNECTION%% *}
case $host in *:*) host="[$host]" ;; esac
MOTLEY_TOKEN=$(cat) exec motley join "$host:$0"'
for host in "$@"; do
  # shellcheck disable=SC2029
  ssh "$host" "sh -c '$remote' $port" <"$folder/token" 2>&1 | sed -u "s/^/$host: /" &
done

# A signal ends a wait early.
while kill -0 "$server" 2>/dev/null; do wait "$server" && code=0 || code=$?; done
wait
exit "${code:-0}"
