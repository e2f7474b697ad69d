# Fetches the packages of the peer machine; a part of ci/machine/build, which sets the variables that are used here. The kernel's
# packages are pinned in kernels.list, the programs' are not.

# The files of the kernel's packages, by the package's name; all of them have the digest that is pinned.
declare -A pinned=()

# pins: this kernel's lines of the list: package, version, SHA-256.
pins() {
    lines "$list" | awk -v kernel="$kernel" '$1 == kernel { print $2, $3, $4 }'
}

fetch_kernel() {
    local each part words names entries=()
    mapfile -t entries < <(pins)
    names=$(printf ' %s' "${entries[@]%% *}")
    for part in image headers kbuild source; do
        [[ $names == *" linux-$part-"* ]] || fail "$list names no linux-$part package for kernel $kernel. $(advice)"
    done
    for each in "${entries[@]}"; do
        read -ra words <<<"$each"
        fetch_pinned "${words[0]}" "${words[1]:-}" "${words[2]:-}"
        [[ $each != linux-image-* ]] || release=${words[0]#linux-image-}
    done
}

# fetch_pinned PACKAGE VERSION DIGEST: downloads the package unless a file with that digest is there. The script ends if the
# mirror does not have that version, or has other bytes.
fetch_pinned() {
    local file
    file=$(cached "$1" "$2")
    if ! has_digest "$file" "$3"; then
        rm -f "$file"
        use_mirror
        # Lists that are out of date name files that the mirror has removed, and lack those that it has added.
        download "$1" "$2" || { refresh && download "$1" "$2"; } || fail_unavailable "$@"
        file=$(cached "$1" "$2")
        has_digest "$file" "$3" || fail_digest "$@" "$(sha256sum "$file" | cut -d ' ' -f 1)"
    fi
    pinned[$1]=$file
}

# cached PACKAGE VERSION: the path of the downloaded file; a pattern if there is none.
cached() {
    local files=("$debs/${1}_${2//:/%3a}"_*.deb)
    echo "${files[0]}"
}

has_digest() {
    [[ -s $1 && $(sha256sum <"$1") == "$2  -" ]]
}

fail_unavailable() {
    local versions
    versions=$(apt-cache "${apt[@]}" madison "$1" 2>>"$log" | awk '!seen[$3]++ { print $3 }' | paste -sd ' ')
    [[ " $versions " != *" $2 "* ]] || fail "$1 $2 cannot be downloaded, although the mirror lists it; see $log"
    fail "the mirror does not have a package that $list pins for kernel $kernel:
  package   $1
  expected  $2, SHA-256 $3
  mirror    ${versions:-no version of this package}; linux-image-amd64 depends on $(image_of)
Point releases of Debian remove older versions. $(advice)
To keep the pinned kernel, put the file with this SHA-256 into $debs; https://snapshot.debian.org has all versions."
}

fail_digest() {
    fail "$1 $2 is not the file that $list pins for kernel $kernel:
  expected  SHA-256 $3
  file      SHA-256 $4, $(cached "$1" "$2")
  mirror    SHA-256 $(digest_of "$1" "$2")
Nothing of it was unpacked. If the mirror can be trusted, the list is wrong. $(advice)"
}

advice() {
    echo "To pin the mirror's kernel of today, run $here/build --pin $kernel, then ci/peers, and commit $list."
}

# pin: the digests are those of the mirror's signed lists, and the downloaded files are checked against them. All packages
# are of the image's Linux, so that siw is compiled from the image's source.
pin() {
    local image version package of digest new=()
    use_mirror
    refresh -o APT::Update::Error-Mode=any || fail "the package lists cannot be refreshed, so nothing is pinned; see $log"
    image=$(image_of)
    [[ -n $image ]] || fail "the package lists know no linux-image-amd64; see $log"
    version=$(apt-cache "${apt[@]}" show "$image" | awk '/^Version: / && !seen++ { print $2 }')
    for package in "$image" $(parts_of "${image#linux-image-}"); do
        of=$(revision_of "$package" "$version")
        digest=$(digest_of "$package" "$of")
        [[ -n $digest ]] || fail "the mirror has $image $version, but not $package of that Linux"
        fetch_pinned "$package" "$of" "$digest"
        new+=("$kernel $package $of $digest")
    done
    {
        grep -e '^#' -e '^$' "$list"
        { lines "$list" | grep -v "^$kernel " || true; printf '%s\n' "${new[@]}"; } | sort
    } >"$list.new"
    mv "$list.new" "$list"
    printf '%s\n' "${new[@]}"
}

# image_of: the image that the mirror's kernel has today.
image_of() {
    apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1
}

# parts_of RELEASE: the other packages of that kernel.
parts_of() {
    echo "linux-headers-$1"
    apt-cache "${apt[@]}" depends "linux-headers-$1" 2>/dev/null |
        sed -nE 's/.*Depends: (linux-(headers|kbuild)-[^ ]+).*/\1/p'
    sed -E 's/^([0-9]+\.[0-9]+).*/linux-source-\1/' <<<"$1"
}

# revision_of PACKAGE VERSION: that version if the mirror has it, or else the newest revision of the same Linux: a mirror has
# the tools and the source of a revision before its signed image, and no older ones by then.
revision_of() {
    apt-cache "${apt[@]}" show "$1" 2>/dev/null | awk -v like="$2" '
        function linux(version) { sub(/-[^-]*$/, "", version); return version }
        $1 == "Version:" && (best == "" || $2 == like) && linux($2) == linux(like) { best = $2 }
        END { print best }'
}

# digest_of PACKAGE VERSION: what the mirror's lists say; nothing if they do not know that version.
digest_of() {
    { apt-cache "${apt[@]}" show "$1=$2" 2>/dev/null || true; } | sed -n 's/^SHA256: //p'
}

# Options of apt-get for the kernel's packages: none for stable, which is in the host's own lists.
apt=()

# use_mirror: sets `apt`. The newer kernel is in the same mirror that this host uses.
use_mirror() {
    local mirror
    [[ $kernel == backports && ${#apt[@]} -eq 0 ]] || return 0
    # shellcheck disable=SC2016 # apt's own words
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' |
        awk '$1 == "bookworm" && $2 == "main" { print $3; exit }')
    mkdir -p "$base/apt/parts" "$base/apt/lists/partial"
    printf '%s\n' 'Types: deb' "URIs: ${mirror:?no mirror of bookworm is configured}" 'Suites: bookworm-backports' \
        'Components: main' 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >"$base/apt/parts/backports.sources"
    apt=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$base/apt/parts" -o Dir::State::lists="$base/apt/lists"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root -o Debug::NoLocking=1)
}

# refresh [OPTION...]: the package lists. Without an option, old lists are kept where a new one cannot be had.
refresh() {
    apt-get -qq "${apt[@]}" "$@" update >>"$log" 2>&1
}

# download PACKAGE VERSION: into the folder of the packages.
download() {
    (cd "$debs" && apt-get -qq "${apt[@]}" -o APT::Sandbox::User=root download "$1=$2" >>"$log" 2>&1)
}

# fetch PACKAGE: downloads the newest version of one that is not pinned, unless it is there; prints where it is.
fetch() {
    local version file
    version=$(apt-cache show "$1" | awk '/^Version: / && !seen++ { print $2 }')
    file=$(cached "$1" "$version")
    [[ -s $file ]] || (apt=() && download "$1" "$version")
    file=$(cached "$1" "$version")
    [[ -s $file ]] || fail "$1 $version cannot be downloaded; see $log"
    echo "$file"
}

# The programs' packages with all that they depend on, as if nothing were installed here.
fetch_tools() {
    : >"$base/no-packages"
    local from=(-o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Dir::State::status="$base/no-packages"
        -o Dir::Cache::archives="$debs" --no-install-recommends)
    local name version arch
    apt-get "${from[@]}" install -y --download-only "${PACKAGES[@]}" >>"$log" 2>&1 ||
        { apt-get -qq update && apt-get "${from[@]}" install -y --download-only "${PACKAGES[@]}"; } >>"$log" 2>&1
    archives=()
    while read -r name version arch; do
        archives+=("$debs/${name}_${version//:/%3a}_$arch.deb")
    done < <(apt-get "${from[@]}" install -y -s "${PACKAGES[@]}" 2>>"$log" |
        sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) [^[]*\[\([a-z0-9]*\)\].*/\1 \2 \3/p')
    ((${#archives[@]} > 0)) || fail "apt-get names no package; see $log"
}
