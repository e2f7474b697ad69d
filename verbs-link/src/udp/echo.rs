//! A packet of this link as it was handed to the driver, all headers included: the kernel returns it with a transmit
//! time stamp. It shows an unprivileged process the identification that its packets have.

use std::net::Ipv4Addr;

use verbs_wire::Ipv4View;

/// The IPv4 header of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) identification: u16,
    pub(super) dont_fragment: bool,
    pub(super) header_words: u8,
    pub(super) total_len: usize,
}

impl Echo {
    /// The IPv4 header between these addresses in a frame, wherever the device's own header ends.
    pub(super) fn find(frame: &[u8], src: Ipv4Addr, dst: Ipv4Addr) -> Option<Self> {
        // Ethernet, with one tag, with two, and devices without headers.
        [14, 18, 22, 0].into_iter().find_map(|begin| {
            let ip = Ipv4View::new(frame.get(begin..)?).ok()?;
            let is_ours = ip.version() == 4 && (ip.src(), ip.dst()) == (src, dst);
            is_ours.then(|| Self {
                identification: ip.identification(),
                dont_fragment: ip.fragment() == 0x4000,
                header_words: ip.words(),
                total_len: ip.total_len().into(),
            })
        })
    }

    /// Whether the header is what the ICRC of the only or first packet of a send relies on.
    pub(super) fn is_plain(&self) -> bool {
        self.identification == 0 && self.dont_fragment && self.header_words == 5
    }

    /// Bytes behind the IP and UDP headers.
    pub(super) fn transport_len(&self) -> Option<usize> {
        self.total_len
            .checked_sub(4 * usize::from(self.header_words) + 8)
    }
}
