# Shared by the peer suites: source it after ci/lib.sh. A suite exits 0 when it has passed, and 77 when something that it
# needs is missing, with the reason as its last line.

# ONLY=regex names the tests to run; ALL=1 asks for the whole suite, and not for its quick set.
ONLY=${ONLY:-} ALL=${ALL:-}
rows=() ran=0 failures=0 begun=0

# Programs of ours run without privileges, and write here.
work=$(mktemp -d)
chmod 777 "$work"

missing() {
    echo "$1"
    exit 77
}

# Programs that a suite has put into the background.
pids=()

# Ends those, and no others. A suite whose programs end in another way defines its own.
stop_all() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pids=()
}

suite_ends() {
    local code=$?
    stop_all
    ! declare -F machine_stop >/dev/null || machine_stop
    rm -rf "$work"
    exit "$code"
}
trap suite_ends EXIT
trap 'echo "error: $BASH_SOURCE, line $LINENO" >&2' ERR

# all: whether the whole suite was asked for.
all() {
    [[ -n $ALL ]]
}

# wanted NAME: whether that test is to run; its time starts.
wanted() {
    [[ $1 =~ $ONLY ]] || return 1
    begun=$EPOCHREALTIME
}

# row NAME RESULT [TEXT]: a line of the table; RESULT is ok or FAILED. Its time is that since `wanted`.
row() {
    local line
    line=$(printf '%-7s %6s s  %s%s' "$2" "$(elapsed "$begun")" "$1" "${3:+: $3}")
    rows+=("$line")
    echo "$line"
    ran=$((ran + 1))
    begun=$EPOCHREALTIME
    [[ $2 == ok ]] || failures=$((failures + 1))
}

# table: all lines again, and the end of the script if one failed, or none ran.
table() {
    printf '\n==> results\n%-7s %8s  %s\n' result time test
    printf '%s\n' "${rows[@]}"
    printf '%s tests, %s failed, %s s in all\n' "$ran" "$failures" "$SECONDS"
    ((ran > 0)) || fail 'no test has run'
    ((failures == 0)) || fail "$failures of $ran tests failed"
}
