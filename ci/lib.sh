# Shared by the scripts of this folder: source it, do not run it.

# Every path in these scripts is from the root of the workspace.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"

# step NAME COMMAND...: says what starts, runs it, and says how long it took. Ends the script if the
# command fails.
step() {
    local name=$1 start=$EPOCHREALTIME code=0
    shift
    printf '\n==> %s\n' "$name"
    # A subshell of its own, so that `set -e` holds inside functions that are run as steps.
    set +e
    (set -e; "$@")
    code=$?
    set -e
    local seconds
    seconds=$(elapsed "$start")
    if [[ $code -ne 0 ]]; then
        printf '==> %s: FAILED after %s s (exit code %s)\n' "$name" "$seconds" "$code" >&2
        exit "$code"
    fi
    printf '==> %s: %s s\n' "$name" "$seconds"
}

# elapsed START: seconds since START, a value of EPOCHREALTIME, with one decimal.
elapsed() {
    local start=${1/[.,]/} now=${EPOCHREALTIME/[.,]/}
    local tenths=$(((now - start) / 100000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# fail MESSAGE: says why, and ends the script.
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# need PROGRAM PACKAGE...: installs Debian packages unless the program is there.
need() {
    local program=$1
    shift
    if command -v "$program" >/dev/null; then
        return
    fi
    command -v apt-get >/dev/null || fail "$program is missing, and there is no apt-get to install $*"
    local sudo=()
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || fail "$program is missing; install $*"
        sudo=(sudo)
    fi
    printf '%s is missing: installing %s\n' "$program" "$*"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@" </dev/null
}

# build_programs [--checked]: builds the programs that scripts run. The selection is that of `cargo test --workspace`, and so are the
# features of every crate: nothing that the tests have built is built again. With --checked it is the optimised build that
# still sees broken assertions and overflows: the `verbs` command, the C libraries and the fuzz targets' driver.
build_programs() {
    case ${1:-} in
        --checked) cargo build -q --profile checked --workspace --lib --bins --example seeded ;;
        *) cargo build -q --workspace --lib --bins --examples ;;
    esac
}

# lines FILE: the lines of a list that are neither empty nor comments.
lines() {
    sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$1"
}
