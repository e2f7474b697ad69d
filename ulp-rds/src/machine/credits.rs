//! Flow control: receive buffers that the peer has posted, and those that it does not know of yet.

/// Credits of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Whether the peer takes part.
    enabled: bool,
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
            send: peer,
            advertise: 0,
            threshold: (own / 4).clamp(1, 16),
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
        if self.enabled {
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
        self.enabled && self.advertise >= self.threshold
    }
}
