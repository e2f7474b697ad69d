//! What the two ends of a pingpong tell each other over TCP before the first packet.
//!
//! The format is that of the `ibv_*_pingpong` programs: LID, queue pair number, first packet sequence
//! number and GID in hexadecimal digits, with colons between and a NUL behind, 52 bytes in one piece,
//! from the client first and then from the server; the client ends it with `done` and a NUL.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use verbs_core::{Gid, Lid, Psn, Qpn, Srqn};

use crate::address::{GID_DIGITS, gid_digits, gid_from_digits, hex};

/// What the client says when it is ready.
pub(crate) const DONE: &[u8; 5] = b"done\0";

/// What each end says when its game is over, of an extended reliable connection.
pub(crate) const END: &[u8; 4] = b"END\0";

/// How one end is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) lid: Lid,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
    /// Of an extended reliable connection: the queue pair that sends, as `qpn` receives, and the shared
    /// receive queue.
    pub(crate) extended: Option<(Qpn, Srqn)>,
}

impl Hello {
    /// Bytes of the message.
    pub(crate) const LEN: usize = 4 + 1 + 6 + 1 + 6 + 1 + GID_DIGITS + 1;

    /// As it travels.
    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let (lid, qpn, psn) = (self.lid.0, self.qpn.value(), self.psn.value());
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{}\0", gid_digits(self.gid));
        let mut bytes = [0; Self::LEN];
        // Each number has the width that its type bounds it to.
        bytes.copy_from_slice(text.as_bytes());
        bytes
    }

    /// Bytes of the message of an extended reliable connection, as `ibv_xsrq_pingpong` has it.
    pub(crate) const EXTENDED_LEN: usize = Self::LEN + 2 * (6 + 1);

    /// As it travels for an extended reliable connection.
    pub(crate) fn emit_extended(&self) -> [u8; Self::EXTENDED_LEN] {
        let (lid, qpn, psn) = (self.lid.0, self.qpn.value(), self.psn.value());
        let (sends, srqn) = self.extended.unwrap_or_default();
        let (sends, srqn) = (sends.value(), srqn.value());
        let gid = gid_digits(self.gid);
        let text = format!("{lid:04x}:{qpn:06x}:{sends:06x}:{psn:06x}:{srqn:06x}:{gid}\0");
        let mut bytes = [0; Self::EXTENDED_LEN];
        // Each number has the width that its type bounds it to.
        bytes.copy_from_slice(text.as_bytes());
        bytes
    }

    /// From what has arrived of an extended reliable connection.
    pub(crate) fn parse_extended(bytes: &[u8; Self::EXTENDED_LEN]) -> Option<Self> {
        Self::parse_text(bytes, true)
    }

    /// From what has arrived; `None` if no pingpong program writes that.
    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        Self::parse_text(bytes, false)
    }

    fn parse_text(bytes: &[u8], is_extended: bool) -> Option<Self> {
        let text = bytes.strip_suffix(b"\0")?;
        let mut fields = text.split(|&byte| byte == b':');
        let mut number = |digits| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            u32::try_from(hex(field)?).ok()
        };
        let (lid, qpn) = (number(4)?, number(6)?);
        let sends = if is_extended { number(6)? } else { 0 };
        let psn = number(6)?;
        let srqn = if is_extended { number(6)? } else { 0 };
        let gid = gid_from_digits(fields.next()?)?;
        let hello = Self {
            lid: Lid(u16::try_from(lid).ok()?),
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            gid,
            extended: is_extended.then(|| (Qpn::new(sends), Srqn::new(srqn))),
        };
        fields.next().is_none().then_some(hello)
    }
}

/// As the programs print it.
impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lid, qpn, psn) = (self.lid.0, self.qpn.value(), self.psn.value());
        write!(f, "LID {lid:#06x}, QPN {qpn:#08x}, ")?;
        if let Some((sends, srqn)) = self.extended {
            let (sends, srqn) = (sends.value(), srqn.value());
            write!(f, "sending QPN {sends:#08x}, SRQN {srqn:#08x}, ")?;
        }
        write!(
            f,
            "PSN {psn:#08x}, GID {}",
            match IpAddr::from(self.gid) {
                IpAddr::V4(_) => Ipv6Addr::from(self.gid).to_string(),
                IpAddr::V6(address) => address.to_string(),
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &[u8; 52] = b"0000:000011:fffff0:00000000000000000000ffffc0000201\0";

    #[test]
    fn the_text_is_that_of_the_programs() {
        let hello = Hello {
            lid: Lid(0),
            qpn: Qpn::new(17),
            psn: Psn::new(0xff_fff0),
            gid: Ipv4Addr::new(192, 0, 2, 1).into(),
            extended: None,
        };
        assert_eq!(&hello.emit(), EXAMPLE);
        assert_eq!(Hello::parse(EXAMPLE), Some(hello));
        assert_eq!(
            hello.to_string(),
            "LID 0x0000, QPN 0x000011, PSN 0xfffff0, GID ::ffff:192.0.2.1"
        );
    }

    /// Goal: no byte may differ in kind. Method: exchange each one of an example for bytes that do not
    /// belong there.
    #[test]
    fn other_texts_are_refused() {
        for at in 0..Hello::LEN {
            for byte in [b'g', b'+', b'-', b' ', 0x80, b'\n', b'x'] {
                let mut text = *EXAMPLE;
                text[at] = byte;
                assert_eq!(Hello::parse(&text), None, "{}", text.escape_ascii());
            }
            let mut text = *EXAMPLE;
            text[at] = if text[at] == b':' { b'0' } else { b':' };
            assert_eq!(Hello::parse(&text), None, "{}", text.escape_ascii());
        }
    }

    fn psn_as_qpn(psn: Psn) -> Qpn {
        Qpn::new(psn.value())
    }

    proptest! {
        #[test]
        fn every_hello_comes_back(lid: u16, qpn: u32, psn: u32, gid: [u8; 16]) {
            let (qpn, psn) = (Qpn::new(qpn), Psn::new(psn));
            let hello = Hello { lid: Lid(lid), qpn, psn, gid: Gid(gid), extended: None };
            prop_assert_eq!(Hello::parse(&hello.emit()), Some(hello));
            let extended = Some((psn_as_qpn(psn), Srqn::new(qpn.value())));
            let hello = Hello { extended, ..hello };
            prop_assert_eq!(Hello::parse_extended(&hello.emit_extended()), Some(hello));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 52), near in "[0-9a-fA-F:]{51}",
        ) {
            for bytes in [bytes, [near.as_bytes(), b"\0"].concat()] {
                let bytes: [u8; 52] = bytes.try_into().expect("52 bytes");
                if let Some(hello) = Hello::parse(&bytes) {
                    prop_assert_eq!(hello.emit().to_vec(), bytes.to_ascii_lowercase());
                }
            }
        }
    }
}
