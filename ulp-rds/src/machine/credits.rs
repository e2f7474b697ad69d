//! Flow control: receive buffers that the peer has posted, and those that it does not know of yet.

/// Credits of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Whether the peer has said how many packets it takes.
    enabled: bool,
    /// Whether it is told how many are taken here. Also where it has said nothing: Linux takes part in what it is told, and
    /// says 0 itself when it is asked, as it has no receive buffers yet.
    grants: bool,
    /// Packets that may be sent.
    send: u32,
    /// Receive buffers posted here that the peer does not know of.
    advertise: u32,
    /// From how many on they are advertised without waiting for a message.
    threshold: u32,
}

impl Credits {
    /// A new connection: what the peer has posted, and how many receive buffers there are here.
    pub(super) fn new(peer: u32, own: u32) -> Self {
        Self {
            enabled: peer != 0 && own != 0,
            grants: own != 0,
            send: peer,
            advertise: 0,
            // Acknowledgements come more often where messages are short, and credits ride on them.
            threshold: (own / 2).clamp(1, 32),
        }
    }

    /// Takes a credit for a packet. The last one is kept for a packet that grants credits, so that the two ends
    /// cannot wait for each other.
    pub(super) fn take(&mut self, grants: bool) -> bool {
        if !self.enabled {
            return true;
        }
        let kept = if grants && self.advertise > 0 { 0 } else { 1 };
        if self.send <= kept {
            return false;
        }
        self.send -= 1;
        true
    }

    /// The peer grants more. Peers that grant more than any queue holds are cut short.
    pub(super) fn granted(&mut self, count: u8) {
        self.send = self.send.saturating_add(count.into()).min(1 << 16);
    }

    /// Receive buffers were posted.
    pub(super) fn posted(&mut self, count: u32) {
        if self.grants {
            self.advertise = self.advertise.saturating_add(count);
        }
    }

    /// What the next header grants.
    pub(super) fn grant(&mut self) -> u8 {
        let count = self.advertise.min(255);
        self.advertise -= count;
        count as u8
    }

    /// Whether the peer is to be told without waiting for a message.
    pub(super) fn is_due(&self) -> bool {
        self.grants && self.advertise >= self.threshold
    }
}
