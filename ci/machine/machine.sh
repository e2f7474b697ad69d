# The peer machine: a Linux kernel with rxe, ib_srp and ib_srpt, in QEMU, with a network namespace of its own. Source it
# after ci/lib.sh.
#
# In the namespace, br0 has the host's addresses and tap0, the wire to the guest's eth0; tap1 is a network of its own, over
# which the guest takes commands, so that nothing that a test does to the wire keeps a command out.
#
#   machine_start KERNEL    starts it, or joins the one that MACHINE names; sets `host`, words to put before a command that
#                           runs in the namespace, and `plain`, the same without any privilege
#   guest COMMAND           runs a shell command in the guest, at most GUEST_S seconds; its output, its exit code
#   machine_lives           whether it runs and takes commands
#   machine_stop            ends it, unless it was joined
#
# MACHINE is the folder of a machine that another script started; see ci/peers.

# The guest and the host on the wire.
readonly GUEST4=10.77.0.2 GUEST6=fd77::2 HOST4=10.77.0.1 HOST6=fd77::1
# A second address of the host, for a second program of ours.
readonly SECOND4=10.77.0.9 SECOND6=fd77::9
# Frames with payloads of 4 KiB and all their headers fit.
readonly MTU=4200
readonly HOST_CONTROL=10.78.0.1 CONTROL=10.78.0.2 CONTROL_PORT=7010
# Seconds that booting may take, and that a machine lives at most.
readonly BOOT_S=240 LIFE_S=3000
GUEST_S=60

machine='' host=() plain=()

# machine_sweep: removes the namespaces of scripts that were killed and could not do it themselves.
machine_sweep() {
    local space pid
    for space in /run/netns/peer-*-*; do
        pid=${space#/run/netns/peer-} pid=${pid%-*}
        [[ ! -e $space || -e /proc/$pid ]] || ip netns del "${space##*/}" 2>/dev/null || true
    done
}

# machine_possible: whether a machine can run here; prints why not.
machine_possible() {
    [[ $EUID -eq 0 ]] || { echo 'network namespaces and tap devices need root'; return 1; }
    [[ -c /dev/net/tun ]] || { echo 'there is no /dev/net/tun'; return 1; }
    [[ $(uname -m) == x86_64 ]] || { echo 'the peer machine is an x86-64 one'; return 1; }
    command -v apt-get >/dev/null || { echo 'the peer machine is made of Debian packages, and there is no apt-get'; return 1; }
}

machine_install() {
    need ip iproute2
    need qemu-system-x86_64 qemu-system-x86
    need setpriv util-linux
    need pkill procps
}

machine_start() {
    local kernel=$1 begun=$EPOCHREALTIME
    if [[ -n ${MACHINE:-} ]]; then
        [[ $(<"$MACHINE/kernel") == "$kernel" ]] || fail "MACHINE names one with the kernel $(<"$MACHINE/kernel"), not $kernel"
        machine=$MACHINE
    else
        machine_sweep
        ci/machine/build "$kernel" || return 1
        machine=$(mktemp -d)
        echo "$kernel" >"$machine/kernel"
        machine_boot || { printf 'the machine did not come up, so it is started once more\n'; machine_end; machine_boot; } ||
            { tail -n 25 "$machine/qemu.log" "$machine/console"; echo 'the peer machine does not start'; machine_stop; return 1; }
    fi
    machine_words
    printf 'kernel %s after %s s\n' "$(guest 'uname -r')" "$(elapsed "$begun")"
}

machine_words() {
    host=(ip netns exec "$(<"$machine/space")")
    plain=("${host[@]}" setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs)
}

machine_boot() {
    local space images line try
    space=peer-$$-$RANDOM
    images=${VERBS_MACHINES:-${XDG_CACHE_HOME:-$HOME/.cache}/verbs-machines}/$(<"$machine/kernel")
    echo "$space" >"$machine/space"
    ip netns add "$space"
    machine_words
    "${host[@]}" ip link set lo up
    "${host[@]}" ip link add br0 mtu "$MTU" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    "${host[@]}" ip tuntap add tap0 mode tap
    "${host[@]}" ip tuntap add tap1 mode tap
    "${host[@]}" ip link set tap0 mtu "$MTU" master br0 up
    for line in "addr add $HOST4/24 dev br0" "addr add $SECOND4/24 dev br0" "-6 addr add $HOST6/64 dev br0 nodad" \
        "-6 addr add $SECOND6/64 dev br0 nodad" 'link set br0 up' "addr add $HOST_CONTROL/24 dev tap1" 'link set tap1 up'; do
        # shellcheck disable=SC2086 # several words
        "${host[@]}" ip $line
    done
    local quiet=console=ttyS0,quiet,panic=-1,oops=panic,mitigations=off,random.trust_cpu=on,tsc=reliable
    # What is on the tap is what is on the wire: nothing is left to a device.
    local nic=romfile=,speed=10000,duplex=full,csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off
    nic+=,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off
    # It ends with its script, or when its time is over, whatever becomes of that: a `timeout` that is killed cannot end it.
    "${host[@]}" setpriv --pdeathsig KILL timeout -k 5 "$LIFE_S" setpriv --pdeathsig KILL \
        qemu-system-x86_64 -nodefaults -no-user-config -machine q35 \
        -accel tcg,thread=multi,tb-size=256 -cpu max -smp 2 -m 1024 -display none -no-reboot \
        -kernel "$images/vmlinuz" -initrd "$images/initramfs.img" \
        -append "${quiet//,/ } machine.guest4=$GUEST4/24 machine.guest6=$GUEST6/64 machine.mtu=$MTU machine.control=$CONTROL machine.port=$CONTROL_PORT" \
        -serial "file:$machine/console" -device virtio-rng-pci,romfile= \
        -netdev tap,id=n0,ifname=tap0,script=no,downscript=no,vnet_hdr=off -device "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:02,$nic" \
        -netdev tap,id=n1,ifname=tap1,script=no,downscript=no,vnet_hdr=off -device "virtio-net-pci,netdev=n1,mac=52:54:00:78:00:02,$nic" \
        >"$machine/qemu.log" 2>&1 </dev/null &
    echo $! >"$machine/pid"
    for ((try = 0; try < BOOT_S * 2; try++)); do
        kill -0 "$(<"$machine/pid")" 2>/dev/null || return 1
        [[ $(guest 'echo here' 2>/dev/null) != here ]] || return 0
        sleep 0.5
    done
    return 1
}

guest() {
    local said
    # shellcheck disable=SC2016 # that shell's own words
    said=$("${host[@]}" timeout "$((GUEST_S + 10))" bash -c 'exec 3<>"/dev/tcp/$0/$1" &&
        printf "%s %s\n" "$2" "$(base64 -w 0 <<<"$3")" >&3 && cat <&3' "$CONTROL" "$CONTROL_PORT" "$GUEST_S" "$1") &&
        [[ $said == *'exit '* ]] || return 125
    printf '%s' "${said%exit *}"
    return "${said##*exit }"
}

# machine_lives: whether it runs and takes commands.
machine_lives() {
    kill -0 "$(<"$machine/pid")" 2>/dev/null && [[ $(GUEST_S=20 guest 'echo here' 2>/dev/null) == here ]]
}

machine_stop() {
    [[ -n $machine && -z ${MACHINE:-} ]] || return 0
    machine_end
    rm -rf "$machine"
    machine=''
}

machine_end() {
    kill "$(<"$machine/pid")" 2>/dev/null || true
    wait "$(<"$machine/pid")" 2>/dev/null || true
    ip netns del "$(<"$machine/space")" 2>/dev/null || true
}
