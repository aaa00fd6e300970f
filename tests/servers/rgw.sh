#!/usr/bin/env bash
# Runs a command against a Ceph RGW of its own: a stricter S3 server than moto, which checks signatures and permissions.
#
#     tests/servers/rgw.sh .venv/bin/pytest tests/servers
#
# One monitor, one OSD in memory and one gateway start in a temporary folder, on loopback alone. The command finds
# TEST_S3_URL in its environment; when it ends, everything stops and the folder goes. Exit 77: packages are missing.
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "usage: $0 COMMAND..." >&2
    exit 2
fi
for program in ceph ceph-mon ceph-osd ceph-authtool monmaptool radosgw radosgw-admin python3; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is missing: apt-get install -y --no-install-recommends radosgw ceph-mon ceph-osd ceph-common" >&2
        exit 77
    fi
done

# Under /tmp whatever TMPDIR says: the daemons' control sockets need paths below 108 characters.
home=$(mktemp -d /tmp/rgw.XXXXXX)
daemons=()

stop() {
    # Nothing they hold outlives this script, so nothing is gained by letting them end in order.
    { kill -9 "${daemons[@]}" && wait; } 2>/dev/null || true
    rm -rf "$home"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # name, program, arguments...
    local name=$1
    shift
    "$@" >"$home/$name.out" 2>&1 &
    daemons+=($!)
}

fail() {
    echo "$1; the ends of the logs:" >&2
    tail -n 15 "$home"/*.out "$home"/*.log >&2 2>/dev/null || true
    exit 1
}

wait_for() { # what, command...
    local what=$1
    shift
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "$what did not come up within 30 s"
}

read -r mon_port rgw_port < <(python3 - <<'EOF'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))
EOF
)
fsid=$(cat /proc/sys/kernel/random/uuid)
osd_uuid=$(cat /proc/sys/kernel/random/uuid)
conf=$home/ceph.conf
export CEPH_CONF=$conf

cat >"$conf" <<EOF
[global]
fsid = $fsid
mon initial members = a
mon host = v2:127.0.0.1:$mon_port
public addr = 127.0.0.1
cluster addr = 127.0.0.1
public network = 127.0.0.0/8
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = $home/keyring
run dir = $home
admin socket = $home/\$name.asok
log file = $home/\$name.log
pid file =
crash dir = $home
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
[mon]
mon data = $home/mon
mon cluster log file = $home/cluster.log
[osd]
osd data = $home/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd class load list = *
osd class default list = *
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:$rgw_port
rgw dns name =
rgw enable usage log = false
rgw run sync thread = false
rgw thread pool size = 64
EOF

key() { ceph-authtool "$home/keyring" --gen-key "$@" >/dev/null; }
touch "$home/keyring"
chmod 600 "$home/keyring"
key -n mon. --cap mon 'allow *'
key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
key -n client.rgw.a --cap mon 'allow rw' --cap osd 'allow rwx'

mkdir "$home/mon" "$home/osd"
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon_port]" "$home/monmap" >/dev/null
ceph-mon -c "$conf" --mkfs -i a --monmap "$home/monmap" --keyring "$home/keyring" >"$home/mkfs.out" 2>&1 || fail "the monitor's folder was not made"
start mon ceph-mon -c "$conf" -f -i a
wait_for "the monitor" ceph -c "$conf" --connect-timeout 2 osd new "$osd_uuid"
ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd_uuid" >>"$home/mkfs.out" 2>&1 || fail "the store's folder was not made"
start osd ceph-osd -c "$conf" -f -i 0
start rgw radosgw -c "$conf" -f -n client.rgw.a
wait_for "the gateway" python3 -c "import socket; socket.create_connection(('127.0.0.1', $rgw_port), 1).close()"

access_key=kvweavetests
secret_key=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
radosgw-admin -c "$conf" user create --uid=kvweave --display-name=kvweave \
    --access-key="$access_key" --secret-key="$secret_key" >"$home/user.out" 2>&1 || fail "the user was not made"

# A bucket is made by a signed request, which is where a test library would be one more dependency.
python3 - "$rgw_port" "$access_key" "$secret_key" <<'EOF' || fail "the bucket was not made"
import base64, email.utils, hashlib, hmac, sys, urllib.request

port, access_key, secret_key = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
digest = hmac.new(secret_key.encode(), f"PUT\n\n\n{date}\n/kvweave-tests".encode(), hashlib.sha1).digest()
headers = {"Date": date, "Authorization": f"AWS {access_key}:{base64.b64encode(digest).decode()}"}
request = urllib.request.Request(f"http://127.0.0.1:{port}/kvweave-tests", method="PUT", headers=headers)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
EOF

TEST_S3_URL="s3://kvweave-tests/run?endpoint=http://127.0.0.1:$rgw_port&access_key=$access_key&secret_key=$secret_key" "$@"
