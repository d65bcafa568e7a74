#!/bin/bash
# Provides a dockerd that can run kind's privileged nodes. If a dockerd runs already, the scripts use it unchanged. If
# none runs and there is no systemd, this starts one.
#   docker.sh start STATE_DIR     prints who started the dockerd in use
#   docker.sh stop STATE_DIR      ends only what a start with this STATE_DIR started
#   docker.sh status STATE_DIR    exit code 0: a dockerd answers, 3: none answers
# STATE_DIR: the pid file, configuration and log of our dockerd, and a list of what to undo.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[ $# = 2 ] || usage
mkdir -p "$2"; STATE=$(cd "$2" && pwd)
PIDFILE=$STATE/dockerd.pid

answers() { docker info >/dev/null 2>&1; }
ours() { # the pid of our dockerd, if it is alive
  local pid
  pid=$(cat "$PIDFILE" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}
full_capabilities() {
  local last have all
  last=$(cat /proc/sys/kernel/cap_last_cap); all=$(((1 << (last + 1)) - 1))
  have=$((16#$(awk '/^CapBnd:/ {print $2}' /proc/self/status)))
  [ $((have & all)) = "$all" ]
}
privileged_works() { # this differs between machines, so try it
  local rc=0 tag=weir.test/probe:$$ shell=/bin/busybox
  [ -e $shell ] || { say "no $shell to try a privileged container with: run $HERE/install-prereqs.sh"; return 1; }
  tar -C / -c "${shell#/}" | docker import - "$tag" >/dev/null
  docker run --rm --privileged --network none "$tag" $shell true || rc=$?
  docker rmi "$tag" >/dev/null
  return $rc
}

# ---- changes of the machine, each with the command that undoes it --------------------------------------------
undo() { printf '%s\n' "$*" >>"$STATE/undo"; }
undo_all() { # newest first
  [ -e "$STATE/undo" ] || return 0
  tac "$STATE/undo" | while read -r command; do $command 2>/dev/null || say "could not undo: $command"; done
  rm -f "$STATE/undo"
}
raise() { # SYSCTL VALUE
  local have
  have=$(sysctl -n "$1")
  if [ "$have" -lt "$2" ] && sysctl -q -w "$1=$2"; then undo sysctl -q -w "$1=$have"; fi
}
# If kube-proxy has not programmed a ClusterIP yet, its packets would leave by the default route. Neither a container
# nor this host may send such a packet out.
guard() {
  local out net tables
  out=$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -1)
  if [ -n "$out" ]; then
    for tables in "iptables DOCKER-USER" "ip6tables FORWARD"; do
      # shellcheck disable=SC2086
      set -- $tables
      "$1" -C "$2" -o "$out" -j REJECT 2>/dev/null && continue
      if "$1" -I "$2" -o "$out" -j REJECT 2>/dev/null; then
        undo "$1" -D "$2" -o "$out" -j REJECT
      elif [ "$1" = iptables ]; then
        return 1
      fi # this machine has no IPv6
    done
  fi
  for net in 10.96.0.0/16 10.244.0.0/16; do # kind's default Service and Pod ranges
    if ip route add unreachable $net 2>/dev/null; then undo ip route del unreachable $net; fi
  done
}

stop() {
  local pid
  if pid=$(ours); then
    kill "$pid"
    for _ in $(seq 1 240); do [ -d "/proc/$pid" ] || break; sleep 0.25; done
    [ ! -d "/proc/$pid" ] || fail "dockerd, pid $pid, does not end"
    say "stopped dockerd, pid $pid"
  else
    say "no dockerd of ours to stop"
  fi
  rm -f "$PIDFILE"
  undo_all
}

launch() {
  local socket=/var/run/docker.sock pid runtimes=''
  [ "$(id -u)" = 0 ] || fail "no dockerd answers, and only root can start one"
  command -v dockerd >/dev/null || fail "no dockerd: run $HERE/install-prereqs.sh"
  [ -z "${DOCKER_HOST:-}" ] || fail "nothing answers at DOCKER_HOST=$DOCKER_HOST"
  if [ -d /run/systemd/system ]; then fail "no dockerd answers; start yours: systemctl start docker"; fi
  undo_all # after a crash
  rm -f "$PIDFILE"
  if ! full_capabilities; then
    if [ -x "$CACHE/bin/runc-capfilter" ]; then
      install -m0755 "$CACHE/bin/runc-capfilter" "$STATE/runc-capfilter"
    else
      use_go
      (cd "$HERE/src/runc-capfilter" && GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -trimpath -o "$STATE/runc-capfilter" .)
    fi
    runtimes='"runtimes": {"runc-capfilter": {"path": "'$STATE/runc-capfilter'"}}, "default-runtime": "runc-capfilter",'
    say "this machine lacks capabilities: runc-capfilter stands before runc"
  fi
  printf '{%s "log-opts": {"max-size": "20m", "max-file": "2"}}\n' "$runtimes" >"$STATE/daemon.json"
  raise fs.inotify.max_user_instances 1024 # the default, 128, is too little for several nodes
  raise fs.inotify.max_user_watches 524288
  # A separate pid file, and no open lock: see 'start'.
  setsid nohup dockerd --config-file "$STATE/daemon.json" --pidfile "$PIDFILE" --host "unix://$socket" \
    >"$STATE/dockerd.log" 2>&1 </dev/null 9>&- &
  pid=$!
  for _ in $(seq 1 240); do
    answers && break
    [ -d "/proc/$pid" ] || break
    sleep 0.25
  done
  if ! answers || ! guard || ! privileged_works; then
    tail -20 "$STATE/dockerd.log" >&2
    stop >&2
    fail "dockerd does not serve: $STATE/dockerd.log"
  fi
  say "dockerd: started by us, pid $(ours)"
}

start() {
  exec 9>"$([ -w /run/lock ] && echo /run/lock || echo "$STATE")/weir-airgap-dockerd.lock"
  flock 9 # of two starts at once, the second finds the dockerd of the first
  if ! answers; then
    launch
  elif pid=$(ours); then
    say "dockerd: started by us, pid $pid"
  elif privileged_works; then
    say "dockerd: was there already, left as it is"
    [ "$(cat /proc/sys/fs/inotify/max_user_instances)" -ge 512 ] ||
      say "note: fs.inotify.max_user_instances is low for clusters of several nodes"
  else
    fail "a dockerd runs that cannot run privileged containers (missing capabilities?); stop it and start again"
  fi
}

status() {
  local pid
  if pid=$(ours); then say "dockerd: started by us, pid $pid"; fi
  answers || { say "dockerd: none answers"; exit 3; }
  [ -n "$pid" ] || say "dockerd: somebody else's"
}

case $1 in start | stop | status) "$1" ;; *) usage ;; esac
