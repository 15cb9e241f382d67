#!/usr/bin/env bash
# The main job on this machine: start, index the sample product, ask three questions, stop.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${LARDER_BIN:-$PWD/.venv/bin}:$PATH"
export LARDER_CONFIG=deploy/sample/larder.yaml
LARDER_DATA=$(mktemp -d "${TMPDIR:-/tmp}/larder-demo.XXXXXX")
export LARDER_DATA
unset LARDER_DATABASE_URL LARDER_CONTROL_DATABASE_URL LARDER_ADMIN_DATABASE_URL LARDER_BROKER_URL

# A Confluence and an Azure DevOps on this machine, as stand-ins for the real ones.
python deploy/sample/services.py "$LARDER_DATA.services" &
services=$!

finish() {
    status=$?
    larder down >/dev/null 2>&1 || true
    kill "$services" 2>/dev/null || true
    rm -f "$LARDER_DATA.services"
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
until [ -s "$LARDER_DATA.services" ]; do
    kill -0 "$services" || { echo "the stand-ins for wiki and boards did not start"; exit 1; }
    sleep 0.1
done
set -a
# shellcheck disable=SC1090  # written by the line above
. "$LARDER_DATA.services"
set +a
echo "Its wiki is a Confluence at $HARBORLINE_WIKI, its boards are an Azure DevOps at $HARBORLINE_BOARDS."
run up --detach
run sources check wiki boards
run index
run status
for question in \
    "Why did we replace fixed slots by continuous booking windows?" \
    "Which backlog item warns about shallow water at the bar?" \
    "How could outdated ship locations go unnoticed on the map for hours during the night?" \
    "A team waited at the wrong quay because a vessel had been moved"
do
    run search "$question" -k 3
done
echo
echo "Step 4 of a backlog pipeline: what is known already of three new items, each answer with its sources."
run enrich deploy/sample/step-3.json -o "$LARDER_DATA/step-4.json"
echo
echo "Another model beside the one that is searched: filled from stored text, read from one moment to the next, and back."
run reindex --provider hashing --wait
run reindex switch
run search "continuous booking windows" -k 1
run reindex rollback
echo
echo "The actions of a YAML engine, called as it would call them: store three rules, find the one that bears on a question."
printf '\n\033[1m$ python deploy/sample/agent.py\033[0m\n'
python deploy/sample/agent.py
run down
echo
echo "Do the same with your own files: larder config init, larder up, larder index."
