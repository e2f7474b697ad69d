//! Names of numbers, and rates.

use std::ffi::{CStr, c_char, c_int};

/// The name at that index, or the last, which is for numbers that have none.
fn name(names: &'static [&'static CStr], index: c_int) -> *const c_char {
    let found = usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index));
    let found = found.or(names.last()).copied().unwrap_or(c"unknown");
    found.as_ptr()
}

/// `ibv_node_type_str`.
pub(crate) unsafe extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
        c"unknown",
    ];
    name(NAMES, node_type)
}

/// `ibv_port_state_str`.
pub(crate) unsafe extern "C" fn port_state_str(state: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
        c"unknown",
    ];
    name(NAMES, state)
}

/// `ibv_event_type_str`.
pub(crate) unsafe extern "C" fn event_type_str(event: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ catastrophic error",
        c"unknown",
    ];
    name(NAMES, event)
}

/// `ibv_wc_status_str`.
pub(crate) unsafe extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
        c"unknown",
    ];
    name(NAMES, status)
}

/// `ibv_wr_opcode_str`, which Debian 13's providers ask for.
pub(crate) unsafe extern "C" fn wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        // Numbers that libibverbs does not use.
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
        c"unknown",
    ];
    name(NAMES, opcode)
}

/// `ibv_rate`: the number, multiples of 2.5 Gbit/s, Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult`: -1 for a number that is not a rate.
pub(crate) unsafe extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    let found = RATES.iter().find(|(number, ..)| *number == rate);
    found.map_or(-1, |(_, mult, _)| *mult)
}

/// `mult_to_ibv_rate`: 0, the largest, for others.
pub(crate) unsafe extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    let found = RATES.iter().find(|(_, other, _)| *other == mult);
    found.map_or(0, |(number, ..)| *number)
}

/// `ibv_rate_to_mbps`.
pub(crate) unsafe extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    let found = RATES.iter().find(|(number, ..)| *number == rate);
    found.map_or(-1, |(_, _, mbps)| *mbps)
}

/// `mbps_to_ibv_rate`.
pub(crate) unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    let found = RATES.iter().find(|(_, _, other)| *other == mbps);
    found.map_or(0, |(number, ..)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> String {
        // SAFETY: a C string that stays.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// Goal: the names are those of verbs-core, and numbers without a name have one for that.
    #[test]
    fn names_agree_with_the_core() {
        for &status in verbs_core::WcStatus::ALL {
            // SAFETY: any number may be asked for.
            let name = unsafe { wc_status_str(status as c_int) };
            assert_eq!(text(name), status.to_string());
        }
        for other in [-1, 99] {
            // SAFETY: as above.
            let names = unsafe {
                [
                    wc_status_str(other),
                    event_type_str(other),
                    port_state_str(other),
                    node_type_str(other),
                    wr_opcode_str(other),
                ]
            };
            assert_eq!(names.map(text), ["unknown"; 5]);
        }
    }

    #[test]
    fn rates_go_both_ways() {
        for (number, mult, mbps) in RATES {
            // SAFETY: any number may be asked for.
            unsafe {
                assert_eq!(rate_to_mbps(number), mbps);
                assert_eq!(mbps_to_rate(mbps), number);
                assert_eq!((rate_to_mult(number), mult_to_rate(mult)), (mult, number));
            }
        }
        // SAFETY: as above.
        assert_eq!(unsafe { (rate_to_mult(99), rate_to_mbps(0)) }, (-1, -1));
    }
}
