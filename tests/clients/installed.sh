#!/usr/bin/env bash
# The clients' own tests, run with their wheels in an environment of its own, without torch and without the server.
# The service runs in the environment of the first argument; the second is the folder of the other environment.
set -euo pipefail
python=$(realpath -s "$1") venv=$(realpath -sm "$2")
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d)
service=
finish() {
    [ -z "$service" ] || kill "$service" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

# Copies: what an older build left in a folder is not taken along.
mkdir "$work/tree"
cp -r clients pyproject.toml "$work/tree"
rm -rf "$work"/tree/clients/*/{build,src/*.egg-info}
for folder in "$work"/tree/clients/*/; do
    [ ! -e "$folder/pyproject.toml" ] || "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$work/wheels" "$folder"
done
# From here on what is imported comes from the wheels.
rm -rf "$work"/tree/clients/*/{build,src}

"$python" -m venv --clear "$venv"
"$venv/bin/pip" install -q -c constraints.txt "$work"/wheels/*.whl pytest hypothesis langchain-tests langchain-text-splitters
"$venv/bin/pip" check
for name in torch transformers kvweave fastapi; do
    ! "$venv/bin/pip" show -q "$name" 2>/dev/null || { echo "$name is installed" >&2; exit 1; }
done

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
# Whether prompts this short come sooner by reuse depends on the machine: the tests expect that they are reused.
env KVWEAVE_REUSE=always KVWEAVE_DATA="$work/data" KVWEAVE_PORT="$port" "$(dirname "$python")/kvweave" serve >"$work/service.log" 2>&1 &
service=$!
export KVWEAVE_BASE_URL="http://127.0.0.1:$port"
for _ in $(seq 240); do
    "$python" -c "import sys, urllib.request; urllib.request.urlopen('$KVWEAVE_BASE_URL/readyz')" 2>/dev/null && break
    kill -0 "$service" 2>/dev/null || { cat "$work/service.log" >&2; exit 1; }
    sleep 0.5
done
KVWEAVE_API_KEY=$(cat "$work/data/admin.key")
export KVWEAVE_API_KEY

cd "$work/tree"
"$venv/bin/python" -m pytest clients "$@"
