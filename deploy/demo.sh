#!/usr/bin/env bash
# The main job on this machine: start, index the sample product, ask three questions, stop.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export LARDER_CONFIG=deploy/sample/larder.yaml
LARDER_DATA=$(mktemp -d "${TMPDIR:-/tmp}/larder-demo.XXXXXX")
export LARDER_DATA
unset LARDER_DATABASE_URL LARDER_CONTROL_DATABASE_URL LARDER_ADMIN_DATABASE_URL LARDER_BROKER_URL

finish() {
    status=$?
    larder down >/dev/null 2>&1 || true
    if [ $status -eq 0 ]; then rm -rf "$LARDER_DATA"; else echo "logs: $LARDER_DATA/logs"; fi
    exit $status
}
trap finish EXIT
run() {
    printf '\n\033[1m$ larder'
    for word in "$@"; do case "$word" in *' '*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac; done
    printf '\033[0m\n'
    larder "$@"
}

echo "Harborline, the sample product: $(find deploy/sample/docs -name '*.md' | wc -l) pages and decisions," \
     "$(find deploy/sample/output -name '*.json' | wc -l) files of backlog items," \
     "$(find deploy/sample/notes -name '*.txt' | wc -l) notes."
run up --detach
run index
run status
for question in \
    "Why did we replace fixed slots by continuous booking windows?" \
    "Which backlog item warns about shallow water at the bar?" \
    "How could outdated ship locations go unnoticed on the map for hours during the night?"
do
    run search "$question" -k 3
done
run down
echo
echo "Do the same with your own files: larder config init, larder up, larder index."
