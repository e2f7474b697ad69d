# Shared by the scripts of this folder: source it, do not run it.

# Every path in these scripts is from the root of the workspace.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"

# Where rustup may fetch nothing, the compiler that rust-toolchain.toml names may be there by another name.
if ! cargo -V >/dev/null 2>&1; then
    pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    [[ $(RUSTUP_TOOLCHAIN=stable rustc -V 2>/dev/null) != "rustc $pinned "* ]] || export RUSTUP_TOOLCHAIN=stable
fi

# step NAME COMMAND...: says what starts, runs it, and says how long it took; also in the file that STEPS names, if it is
# set. Ends the script if the command fails.
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
    printf '%8s s  %s\n' "$seconds" "$name" >>"${STEPS:-/dev/null}"
}

# beside NAME COMMAND...: a step that runs beside others until `together`, as a group of processes of its own. A script that
# has some ends them when it ends: `trap stop_besides EXIT`.
besides=()
beside() {
    local log
    log=$(mktemp)
    set -m
    (step "$@") >"$log" 2>&1 </dev/null &
    set +m
    besides+=("$! $log")
}

stop_besides() {
    local each
    for each in "${besides[@]}"; do
        kill -TERM -- "-${each%% *}" 2>/dev/null || true
        rm -f "${each#* }"
    done
}

# together: waits for the steps that run beside each other, prints what each has said, and ends the script if one has failed.
together() {
    local each code=0
    for each in "${besides[@]}"; do
        wait "${each%% *}" || code=$?
        cat "${each#* }"
        rm -f "${each#* }"
    done
    besides=()
    ((code == 0)) || exit "$code"
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

# retry COMMAND...: what asks another host may fail once or twice.
retry() {
    local try
    for try in 1 2 3; do
        ! "$@" || return 0
        printf 'try %s of 3 failed: %s\n' "$try" "$*"
        sleep $((try * 5))
    done
    return 1
}

# need PROGRAM PACKAGE...: installs Debian packages unless the program is there.
need() {
    local program=$1
    shift
    if command -v "$program" >/dev/null; then
        return
    fi
    printf '%s is missing\n' "$program"
    [[ -z ${INSTALLED:-} ]] || fail "ci/debian.list has to name it: $program $*"
    install_packages "$@"
}

# need_all LIST: installs what the list names and this machine lacks, at once. A line is a program, or a path, and its packages.
need_all() {
    local program packages absent=()
    while read -r program packages; do
        # shellcheck disable=SC2206 # several words
        [[ -e $program ]] || PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || absent+=($packages)
    done < <(lines "$1")
    ((${#absent[@]} == 0)) || install_packages "${absent[@]}"
}

# install_packages PACKAGE...: of Debian.
install_packages() {
    command -v apt-get >/dev/null || fail "there is no apt-get to install $*"
    local sudo=()
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || fail "only root can install packages, and there is no sudo: install $*"
        sudo=(sudo)
    fi
    printf 'installing %s\n' "$*"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q -o Acquire::Retries=5 </dev/null
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y -o Acquire::Retries=5 --no-install-recommends "$@" </dev/null
}

# fetch_all: whatever comes from another host: Debian's packages, crates, and the runner of the instruction counts.
fetch_all() {
    retry need_all ci/debian.list
    retry cargo fetch --locked
    retry ci/counts --tools
}

# run_tests: cargo test, each program by ci/runner. What is drawn by chance is the same every time.
run_tests() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    env "CARGO_TARGET_${host}_RUNNER=$PWD/ci/runner" PROPTEST_RNG_SEED=1 cargo test --workspace --no-fail-fast
}

# judge_flakes: what passed at a second try only is a failure, if it is more than three tests, or if one of them did so in
# the run before as well, as far as this machine knows that.
judge_flakes() {
    local before=${VERBS_FLAKES:-${XDG_CACHE_HOME:-$HOME/.cache}/verbs-ci/flakes} count twice
    mkdir -p "${before%/*}"
    touch "$before"
    count=$(wc -l <"$FLAKES")
    twice=$(sort -u "$FLAKES" | comm -12 - <(sort -u "$before"))
    sed 's/^/    /' "$FLAKES"
    cp "$FLAKES" "$before"
    ((count <= 3)) || fail "$count tests passed at their second try only, and three are the most"
    [[ -z $twice ]] || fail "these needed a second try twice in a row: $twice"
    printf '%s tests needed a second try\n' "$count"
}

# build_programs [--checked]: builds the programs that scripts run. The selection is that of `cargo test --workspace`, and so are the
# features of every crate: nothing that the tests have built is built again. With --checked it is the optimised build that
# still sees broken assertions and overflows: the `verbs` command and the C libraries.
build_programs() {
    case ${1:-} in
        --checked) cargo build -q --profile checked --workspace --lib --bins ;;
        *) cargo build -q --workspace --lib --bins --examples ;;
    esac
}

# alone "$@": starts the script over in a network of its own, which has `lo` and nothing else, and in a space of processes in
# which nothing outlives it; where the system allows neither, goes on as it is. Packages and builds come before.
alone() {
    local flags
    [[ -z ${IS_ALONE:-} ]] || return 0
    if [[ $EUID -eq 0 ]] && command -v ip >/dev/null; then
        for flags in '-n -p -f --kill-child --mount-proc' '-n'; do
            # shellcheck disable=SC2086 # several words
            unshare $flags true 2>/dev/null || continue
            [[ -z ${work:-} ]] || rm -rf "$work"
            # The shell between them is the first process of that space, so that the script is one that signals end.
            # shellcheck disable=SC2016,SC2086 # that shell's own words; several words
            IS_ALONE=1 exec unshare $flags -- sh -c 'ip link set lo up && "$@"; exit $?' sh "$0" "$@"
        done
    fi
    echo 'no network namespace can be made here: the script shares the network of this host'
}

# lines FILE: the lines of a list that are neither empty nor comments.
lines() {
    sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$1"
}

# iser_disk TARGET FILE INITIATOR: the tgtd at TGT_IPC_SOCKET serves that file over iSER, as unit 1 of the target. Over iSER tgt lets an
# initiator in only if both its address and its name are bound.
iser_disk() {
    tgtadm --lld iser --op new --mode target --tid 1 -T "$1" &&
        tgtadm --lld iser --op new --mode logicalunit --tid 1 --lun 1 -b "$2" &&
        tgtadm --lld iser --op bind --mode target --tid 1 -I ALL &&
        tgtadm --lld iser --op bind --mode target --tid 1 -Q "$3"
}
