#!/bin/sh
# Starts Valkey with its password read on standard input, so that neither a file nor the process list shows it.
set -eu

settings=$(cat /etc/valkey/larder.conf)
password=$(cat /run/secrets/valkey_password)
# Without a password Valkey would take orders from anyone on its network.
test -n "$password" || { echo "secret valkey_password is empty; run deploy/compose/secrets.sh" >&2; exit 1; }

exec valkey-server - <<CONFIG
$settings
requirepass $password
CONFIG
