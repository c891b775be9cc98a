# curl: whole, streamed, wrong. Arguments: base URL, model.
set -eu
json='content-type: application/json'
body='{"model": "'$2'", "prompt": "def add(a, b):\n", "max_tokens": 8, "temperature": 0}'
curl --silent --fail-with-body "$1/models" | grep -q "$2"
curl --silent --fail-with-body -H "$json" -d "$body" "$1/completions" | grep -q '"text"'
curl --silent --fail-with-body --no-buffer -H "$json" -d "${body%?}, \"stream\": true}" "$1/completions" | grep -q 'data: \[DONE\]'
test "$(curl --silent --output /dev/null --write-out '%{http_code}' -H "$json" -d "{" "$1/completions")" = 400
test "$(curl --silent --output /dev/null --write-out '%{http_code}' -d "$body" "$1/completions")" = 415
echo "models, completions whole and streamed, errors"
