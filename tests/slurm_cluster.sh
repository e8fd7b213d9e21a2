#!/bin/bash
# A Slurm cluster in namespaces of its own; tests/slurm_cluster.py starts it. When this, their first
# process, ends, the kernel ends every other, so that no daemon, mount or port outlives the tests.
#
#   unshare --mount --pid --fork --kill-child --net --mount-proc --uts bash cluster.sh FOLDER GPUS [GROUPS]
#
# FOLDER/etc has slurm.conf and its like, FOLDER/hosts the names; GROUPS are control groups. Commands come on standard input, one
# a line (start NAME, stop NAME, kill NAME; NAME: munged, mariadbd, slurmdbd, slurmctld or a node);
# each is answered with one line: ok, or what went wrong. End of input is the end of the cluster.
set -u
folder=$1
num_gpus=$2
groups=${3-}
wait_for() { # SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || return 1
    sleep 0.1
  done
}
pid_of() { cat "/run/$1.pid" 2>/dev/null; }
alive() { [ -n "$(pid_of "$1")" ] && kill -0 "$(pid_of "$1")"; }
dead() { ! alive "$1"; }

world() {
  # With nothing but 127.0.0.1, getaddrinfo answers no question of AI_ADDRCONFIG.
  ip link set lo up && ip address add 192.0.2.1/32 dev lo && hostname head || return
  mount --bind "$folder/hosts" /etc/hosts || return
  # /run is the daemons' own: sockets, pid files, state, the lease's folder.
  mount -t tmpfs -o mode=755 cluster /run || return
  mkdir -m 1777 /run/lock && mkdir -p /run/munge /run/state /run/dev /run/mysqld || return
  # The executor's inner srun is started without SLURM_CONF, so the default place must lead here.
  mount --bind "$folder/etc" /etc/slurm || return
  # gres.conf takes nothing but devices. Major 195 is NVIDIA's; no driver needs to stand behind it.
  local gpu
  for ((gpu = 0; gpu < num_gpus; gpu++)); do mknod -m 666 "/run/dev/nvidia$gpu" c 195 "$gpu" || return; done
  (umask 077 && head -c 128 /dev/urandom >/run/munge/key) || return
  # Slurm's control groups go into one of the cluster's own, which it finds where it looks for the root.
  local group
  for group in $groups; do mount --bind "$group" "$(dirname "$group")" || return; done
}

start() {
  case $1 in
    munged)
      munged --force --key-file=/run/munge/key --pid-file=/run/munged.pid \
        --log-file="$folder/log/munged" --seed-file=/run/munge/seed && wait_for 10 munge -n ;;
    mariadbd)
      if [ ! -d /run/mysql ]; then
        mkdir /run/mysql && chown mysql: /run/mysql /run/mysqld
        mariadb-install-db --no-defaults --user=mysql --datadir=/run/mysql \
          --auth-root-authentication-method=socket --skip-test-db >"$folder/log/mariadb-install" 2>&1 || return
      fi
      mariadbd --no-defaults --user=mysql --datadir=/run/mysql --socket=/run/mysqld/mysqld.sock \
        --bind-address=127.0.0.1 --pid-file=/run/mysqld/pid --innodb-buffer-pool-size=64M \
        --innodb-lock-wait-timeout=900 --innodb-use-native-aio=0 --innodb-flush-log-at-trx-commit=0 </dev/null >"$folder/log/mariadbd" 2>&1 &
      echo $! >/run/mariadbd.pid
      local user="slurm@127.0.0.1 identified by 'testbed'"
      wait_for 30 mariadb --no-defaults --socket=/run/mysqld/mysqld.sock \
        -e "create database if not exists slurm_acct; grant all on slurm_acct.* to $user" ;;
    slurmdbd)
      slurmdbd && wait_for 30 sacctmgr -n show cluster || return
      [ -n "$(sacctmgr -nP show cluster testbed format=cluster)" ] || sacctmgr -i add cluster testbed >/dev/null ;;
    slurmctld)
      slurmctld >/dev/null && wait_for 20 sh -c "scontrol ping | grep -q 'is UP'" ;;
    *)
      mkdir -p "/run/spool/$1" && slurmd -N "$1" && wait_for 20 sh -c "sinfo -h -n $1 -o %T | grep -Eq '^(idle|mixed|allocated|completing|draining|drained)$'" ;;
  esac
}

end() { # SIGNAL NAME
  kill -s "$1" "$(pid_of "$2")" 2>/dev/null
  wait_for 15 dead "$2"
}

answer() { if "$@" </dev/null 2>"$folder/log/trouble"; then echo ok; else echo "$*: $(tail -n 3 "$folder/log/trouble" | tr '\n' ' ')"; fi; }

answer world
while read -r verb name; do
  case $verb in
    start) answer start "$name" ;;
    stop) answer end TERM "$name" ;;
    kill) answer end KILL "$name" ;;
  esac
done
