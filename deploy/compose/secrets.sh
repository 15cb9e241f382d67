#!/bin/sh
# Writes new passwords and the URLs that hold them into deploy/secrets; existing files stay as they are.
set -eu
cd "$(dirname "$0")/../secrets"
# Containers read the files as another user, so the files are readable and the folder is closed.
chmod 0700 .
umask 022

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { [ -s "$1.txt" ] || printf '%s' "$2" > "$1.txt"; }
database() { printf 'postgresql://%s:%s@postgres:5432/larder' "$1" "$2"; }

for name in postgres owner valkey; do
    keep "${name}_password" "$(random)"
done
keep flower_auth "operator:$(random)"
keep jwt_secret "$(random)"
keep metrics_token "$(random)"
keep admin_database_url "$(database larder_owner "$(cat owner_password.txt)")"
# The migration gives these two roles the passwords that their URLs name.
keep database_url "$(database larder_app "$(random)")"
keep control_database_url "$(database larder_control "$(random)")"
keep broker_url "redis://:$(cat valkey_password.txt)@valkey:6379/0"
