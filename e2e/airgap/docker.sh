#!/bin/bash
# Provides a dockerd that can run kind's privileged nodes. If a dockerd runs already, the scripts use it unchanged. If
# none runs and there is no systemd, this starts one.
#   docker.sh start STATE_DIR     prints whether this script started the dockerd in use
#   docker.sh stop STATE_DIR      ends only the dockerd that a start with this STATE_DIR started
#   docker.sh status STATE_DIR    exit code 0: a dockerd answers, 3: none answers
# STATE_DIR contains the pid file, the configuration and the log of that dockerd, and a list of changes to undo.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[ $# = 2 ] || usage
mkdir -p "$2"; STATE=$(cd "$2" && pwd)
PIDFILE=$STATE/dockerd.pid

answers() { docker info >/dev/null 2>&1; }
ours() { # prints the pid of the dockerd that this script started, if it runs
  local pid
  pid=$(cat "$PIDFILE" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}
full_capabilities() {
  local last have all
  last=$(cat /proc/sys/kernel/cap_last_cap); all=$(((1 << (last + 1)) - 1))
  have=$((16#$(awk '/^CapBnd:/ {print $2}' /proc/self/status)))
  [ $((have & all)) = "$all" ]
}
privileged_works() { # tries a privileged container, because not every machine can run one
  local rc=0 tag=weir.test/probe:$$ shell=/bin/busybox
  [ -e $shell ] || { say "$shell is missing, which a privileged test container needs: run $HERE/install-prereqs.sh"; return 1; }
  tar -C / -c "${shell#/}" | docker import - "$tag" >/dev/null
  docker run --rm --privileged --network none "$tag" $shell true || rc=$?
  docker rmi "$tag" >/dev/null
  return $rc
}

# ---- changes to the machine, each with the command that undoes it --------------------------------------------
undo() { printf '%s\n' "$*" >>"$STATE/undo"; }
undo_all() { # undoes the newest change first
  [ -e "$STATE/undo" ] || return 0
  tac "$STATE/undo" | while read -r command; do $command 2>/dev/null || say "could not undo: $command"; done
  rm -f "$STATE/undo"
}
raise() { # SYSCTL VALUE
  local have
  have=$(sysctl -n "$1")
  if [ "$have" -lt "$2" ] && sysctl -q -w "$1=$2"; then undo sysctl -q -w "$1=$have"; fi
}
# If kube-proxy has not programmed a ClusterIP yet, its packets would leave by the default route. This prevents
# containers and this host from sending such packets.
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
    say "there is no dockerd to stop that this script started"
  fi
  rm -f "$PIDFILE"
  undo_all
}

launch() {
  local socket=/var/run/docker.sock pid runtimes=''
  [ "$(id -u)" = 0 ] || fail "no dockerd answers, and only root can start one"
  command -v dockerd >/dev/null || fail "dockerd is not installed: run $HERE/install-prereqs.sh"
  [ -z "${DOCKER_HOST:-}" ] || fail "nothing answers at DOCKER_HOST=$DOCKER_HOST"
  if [ -d /run/systemd/system ]; then fail "no dockerd answers; start it with: systemctl start docker"; fi
  undo_all # changes that remain after a crash
  rm -f "$PIDFILE"
  if ! full_capabilities; then
    if [ -x "$CACHE/bin/runc-capfilter" ]; then
      install -m0755 "$CACHE/bin/runc-capfilter" "$STATE/runc-capfilter"
    else
      use_go
      (cd "$HERE/src/runc-capfilter" && GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -trimpath -o "$STATE/runc-capfilter" .)
    fi
    runtimes='"runtimes": {"runc-capfilter": {"path": "'$STATE/runc-capfilter'"}}, "default-runtime": "runc-capfilter",'
    say "this machine lacks capabilities: dockerd runs runc through runc-capfilter"
  fi
  printf '{%s "log-opts": {"max-size": "20m", "max-file": "2"}}\n' "$runtimes" >"$STATE/daemon.json"
  raise fs.inotify.max_user_instances 1024 # the default, 128, is too little for several nodes
  raise fs.inotify.max_user_watches 524288
  # dockerd gets a separate pid file. It must not inherit the lock of 'start', which is file descriptor 9.
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
    fail "dockerd does not work: see $STATE/dockerd.log"
  fi
  say "dockerd: started by this script, pid $(ours)"
}

start() {
  exec 9>"$([ -w /run/lock ] && echo /run/lock || echo "$STATE")/weir-airgap-dockerd.lock"
  flock 9 # if two starts run at the same time, the second one finds the dockerd of the first
  if ! answers; then
    launch
  elif pid=$(ours); then
    say "dockerd: started by this script, pid $pid"
  elif privileged_works; then
    say "dockerd: was already running, and is used unchanged"
    [ "$(cat /proc/sys/fs/inotify/max_user_instances)" -ge 512 ] ||
      say "note: fs.inotify.max_user_instances is low for clusters of several nodes"
  else
    fail "the running dockerd cannot run privileged containers (missing capabilities?); stop it, and run this command again"
  fi
}

status() {
  local pid
  if pid=$(ours); then say "dockerd: started by this script, pid $pid"; fi
  answers || { say "dockerd: none answers"; exit 3; }
  [ -n "$pid" ] || say "dockerd: not started by this script"
}

case $1 in start | stop | status) "$1" ;; *) usage ;; esac
