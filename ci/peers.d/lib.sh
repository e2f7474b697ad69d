# Shared by the peer suites: source it after ci/lib.sh. A suite exits 0 when it has passed, and 77 when something that it
# needs is missing, with the reason as its last line.
#
#   ONLY=regex            the tests, or the parts, to run
#   ALL=1                 the whole suite, and not its quick set
#   WITHOUT_MACHINE=1     a suite with a half that needs the peer machine leaves that half out
#   RECORD=file           gets a line for each row, for ci/peers: the result, the row, and `again`

ONLY=${ONLY:-} ALL=${ALL:-}
rows=() ran=0 failures=0 begun=0
# What ONLY has to be to run the rows again that come now, where that is not the name of the row.
again=''

# Programs of ours run without privileges, and write here.
work=$(mktemp -d)
chmod 777 "$work"

missing() {
    echo "$1"
    record missing "$1"
    exit 77
}

# record RESULT TEXT [ONLY]
record() {
    printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}" >>"${RECORD:-/dev/null}"
}

# without_machine WHAT: whether the half of the suite that needs the peer machine is to be left out; says so.
without_machine() {
    [[ -n ${WITHOUT_MACHINE:-} ]] || return 1
    printf '\nleft out, as it needs the peer machine: %s. It is run by hand: ci/peers %s\n' "$1" "${0##*/}"
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

# await SECONDS COMMAND...: tries the command, whose output nobody sees, until it succeeds; fails when the time is over.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

# asleep PID: whether no thread of that process and of those that it has started has run for a moment: a server that waits
# for its clients. On a busy machine a thread that wants to run is not asleep.
asleep() {
    local before
    before=$(threads "$1")
    sleep 0.1
    [[ $before != *[RD]* && $before == "$(threads "$1")" ]]
}

# threads PID: the state of each thread, and how often it has given up its processor.
threads() {
    local each
    for each in $(tree "$1"); do
        awk '/^State:/ || /ctxt_switches:/ { print $2 }' "/proc/$each"/task/*/status 2>/dev/null || true
    done
}

# tree PID: that process and all that it, and those, have started.
tree() {
    local child
    echo "$1"
    for child in $(pgrep -P "$1" || true); do
        tree "$child"
    done
}

# gone PID...: whether none of them is there.
gone() {
    ! kill -0 "$@" 2>/dev/null
}

# wanted NAME: whether that test is to run; its time starts.
wanted() {
    [[ $1 =~ $ONLY ]] || return 1
    begun=$EPOCHREALTIME
}

# part NAME COMMAND...: rows that need each other. ONLY names all of them or none, by the name of the part.
part() {
    [[ $1 =~ $ONLY ]] || return 0
    printf '\n==> %s\n' "$1"
    begun=$EPOCHREALTIME
    again="^$1\$"
    "${@:2}"
    again=''
    stop_all
}

# row NAME RESULT [TEXT]: a line of the table; RESULT is ok or FAILED. Its time is that since `wanted`.
row() {
    local line
    line=$(printf '%-7s %6s s  %s%s' "$2" "$(elapsed "$begun")" "$1" "${3:+: $3}")
    rows+=("$line")
    echo "$line"
    record "$2" "$1" "$again"
    ran=$((ran + 1))
    begun=$EPOCHREALTIME
    [[ $2 == ok ]] || failures=$((failures + 1))
}

# drops: datagrams that the kernel has dropped in this network namespace, as a socket had no room.
drops() {
    { cat /proc/net/snmp /proc/net/snmp6 2>/dev/null || true; } | awk '
        $1 == "Udp:" && !column { for (i = 2; i <= NF; i++) if ($i == "RcvbufErrors") column = i; next }
        $1 == "Udp:" { sum += $column }
        $1 == "Udp6RcvbufErrors" { sum += $2 }
        END { print sum + 0 }'
}

# excused COMMAND...: a test over an unreliable service, which may lose what a socket has no room for. A try that failed
# while the kernel dropped datagrams is no answer: there are three tries. `said` tells of them, for the row.
excused() {
    local before now try
    said=''
    for try in 1 2 3; do
        before=$(drops)
        ! "$@" || return 0
        now=$(drops)
        ((now > before)) || return 1
        said+="${said:+, }try $try lost $((now - before)) datagrams to a full socket"
        printf '%s\n' "$said"
    done
    return 1
}

# table: all lines again, and the end of the script if one failed, or none ran.
table() {
    printf '\n==> results\n%-7s %8s  %s\n' result time test
    printf '%s\n' "${rows[@]}"
    printf '%s tests, %s failed, %s s in all\n' "$ran" "$failures" "$SECONDS"
    record end ''
    ((ran > 0)) || fail 'no test has run'
    ((failures == 0)) || fail "$failures of $ran tests failed"
}

# debian NAME RELEASE [PACKAGE...]: a folder with that Debian, made once; prints where it is. Needs root, and the mirror.
debian() {
    local system=${VERBS_SYSTEMS:-$HOME/.cache/verbs-systems}/$1 packages
    packages=$(IFS=, && echo "${*:3}")
    if [[ ! -e $system/complete ]]; then
        rm -rf "$system"
        mkdir -p "$system"
        debootstrap --variant=minbase ${packages:+--include="$packages"} "$2" "$system" \
            "${VERBS_MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap" 2>&1 || {
            tail -n 20 "$work/debootstrap" >&2
            return 1
        }
        touch "$system/complete"
    fi
    echo "$system"
}
