# To be sourced in the project's root on the machine that .dev/site.tar.xz was brought to: unpacks it
# once, and sets the paths. `step NAME SECONDS COMMAND…` gives a command a limit, keeps what it prints
# in $OUT, says how it ended, and goes on.
export OUT=${OUT:-$PWD/.dev/out} UNPACKED=${UNPACKED:-/tmp/featuremill-unpacked}
mkdir -p "$OUT" "$UNPACKED"
[ -d "$UNPACKED/site" ] || python3 -c "import tarfile; tarfile.open('.dev/site.tar.xz').extractall('$UNPACKED', filter='fully_trusted')"
export PYTHONPATH=$PWD/src:$UNPACKED/site PATH=$UNPACKED/site/bin:$PATH
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONUNBUFFERED=1
step() {
  local name=$1 seconds=$2 began=$SECONDS status
  shift 2
  timeout -k 10 "$seconds" "$@" >"$OUT/$name.log" 2>&1
  status=$?
  echo "== $name: status $status after $((SECONDS - began)) s; at $SECONDS s"
  tail -n "${TAIL:-12}" "$OUT/$name.log" | cut -c 1-300
}
