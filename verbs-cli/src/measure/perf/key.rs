//! How a queue pair is reached: the message of perftest's exchange over TCP.

use std::fmt;

use verbs_core::{Gid, Psn, Qpn, RKey};

/// What one end tells the other of a queue pair. On InfiniBand there are LIDs; with a GID they are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// READs and atomics of its peer that it remembers.
    pub(super) out_reads: u8,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) rkey: RKey,
    /// Where the peer's messages go.
    pub(super) vaddr: u64,
    pub(super) gid: Gid,
}

impl Key {
    /// Bytes of the message: text with hexadecimal fields, and a NUL.
    pub(super) const LEN: usize = 108;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let Self {
            out_reads,
            qpn,
            psn,
            rkey,
            vaddr,
            gid,
        } = *self;
        let (qpn, psn, rkey) = (qpn.value(), psn.value(), rkey.value());
        let mut text = format!("0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{vaddr:016x}:");
        for byte in gid.0 {
            text += &format!("{byte:02x}:");
        }
        text += "00000000:";
        let mut bytes = [0; Self::LEN];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        bytes
    }

    /// `None` if it is anything else.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (&last, text) = bytes.split_last()?;
        let text = str::from_utf8(text).ok()?;
        // The number of a shared receive queue comes last; 4.5 has a colon after it, others a NUL.
        if last != 0 {
            return None;
        }
        let fields: Vec<_> = text.trim_end_matches(['\0', ':']).split(':').collect();
        let [_lid, out_reads, qpn, psn, rkey, vaddr, gid @ .., _srqn] = fields.as_slice() else {
            return None;
        };
        let mut gid_bytes = [0; 16];
        if gid.len() != gid_bytes.len() {
            return None;
        }
        for (to, from) in gid_bytes.iter_mut().zip(gid) {
            *to = u8::try_from(hex(from, 2)?).ok()?;
        }
        let number = |text: &str, digits| u32::try_from(hex(text, digits)?).ok();
        Some(Self {
            // More than a queue pair can have is as good as that.
            out_reads: u8::try_from(number(out_reads, 4)?).unwrap_or(u8::MAX),
            qpn: Qpn::new(number(qpn, 6)?),
            psn: Psn::new(number(psn, 6)?),
            rkey: RKey::new(number(rkey, 8)?),
            vaddr: hex(vaddr, 16)?,
            gid: Gid(gid_bytes),
        })
    }
}

/// A field of so many digits at most.
fn hex(text: &str, digits_max: usize) -> Option<u64> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let fits = (1..=digits_max).contains(&text.len());
    (is_hex && fits)
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
}

/// As perftest prints it: the bytes of the GID are decimal.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qpn, psn, rkey) = (self.qpn.value(), self.psn.value(), self.rkey.value());
        writeln!(
            f,
            "LID 0000 QPN {qpn:#06x} PSN {psn:#x} RKey {rkey:#08x} VAddr {:#016x}",
            self.vaddr
        )?;
        let gid: Vec<_> = self.gid.0.iter().map(|byte| format!("{byte:02}")).collect();
        write!(f, " GID: {}", gid.join(":"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn golden() -> Key {
        Key {
            out_reads: 1,
            qpn: Qpn::new(0x11),
            psn: Psn::new(0xab_cdef),
            rkey: RKey::new(0x1234),
            vaddr: 0x7f00_dead_beef,
            gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 1])),
        }
    }

    /// Goal: the text that perftest 4.5 to 26.04 writes and reads.
    #[test]
    fn the_text_is_perftests() {
        let text = "0000:0001:000011:abcdef:00001234:00007f00deadbeef:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:";
        let mut bytes = [0; Key::LEN];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        assert_eq!(golden().emit(), bytes);
        assert_eq!(Key::parse(&bytes), Some(golden()));
        let shown = golden().to_string();
        assert!(
            shown.ends_with("GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            numbers: (u8, u32, u32, u32, u64),
            gid: [u8; 16],
        ) {
            let (out_reads, qpn, psn, rkey, vaddr) = numbers;
            let key = Key {
                out_reads,
                qpn: Qpn::new(qpn & 0xff_ffff),
                psn: Psn::new(psn & 0xff_ffff),
                rkey: RKey::new(rkey),
                vaddr,
                gid: Gid(gid),
            };
            prop_assert_eq!(Key::parse(&key.emit()), Some(key));
        }

        /// Goal: whatever a peer sends, nothing panics. Method: a right message with a few bytes replaced, so that
        /// most fields stay what they are.
        #[test]
        fn damaged_messages_are_refused_or_read(damage in prop::collection::vec((0..Key::LEN, any::<u8>()), 1..4)) {
            let mut bytes = golden().emit();
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            let _ = Key::parse(&bytes);
        }
    }
}
