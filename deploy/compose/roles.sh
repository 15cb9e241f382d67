#!/bin/sh
# The owner and the database, made once while the PostgreSQL volume is empty. The owner is no superuser, so that
# row-level security holds for it too; it makes the other two roles itself, in the migration.
set -e

test -s /run/secrets/owner_password || {
    echo "secret owner_password is empty; run deploy/compose/secrets.sh" >&2
    exit 1
}

# psql reads the password itself, so that no process list shows it.
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set owner_password `cat /run/secrets/owner_password`
create role larder_owner login createrole password :'owner_password';
create database larder owner larder_owner;
\connect larder
create extension vector;
SQL
