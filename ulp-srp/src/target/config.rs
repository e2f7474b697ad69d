//! The configuration and limits of a target.

use std::time::Duration;

use crate::iu::{LoginReq, PortId};

/// The configuration of a target. Every number bounds something that initiators could otherwise make large.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The name of the target's port; initiators must know it.
    pub port_id: PortId,
    /// The names of the initiator ports that may log in; `None` for all.
    pub allow: Option<Vec<PortId>>,
    /// Port of the device. 1 by default.
    pub port: u8,
    /// Requests that an initiator may have outstanding on one channel: each takes a receive buffer.
    /// 128 by default, 1 at least.
    pub request_limit: u16,
    /// The initial limit of a channel; [`Target::adjust`](super::Target::adjust) changes it. Equal to
    /// `request_limit` by default.
    pub initial_limit: u16,
    /// Bytes of the longest information unit from an initiator. 8,260 by default: Linux sends up to 8 KiB
    /// of data inside a command.
    pub iu_bytes: u32,
    /// Whether initiators may send data inside commands.
    pub immediate: bool,
    /// Channels of all initiators together. 64 by default.
    pub channels_max: u32,
    /// Logins that were answered but not yet confirmed by their senders, of all addresses together. They do not
    /// count against `channels_max`, and a new one replaces the oldest: a real initiator confirms within a round
    /// trip. 32 by default.
    pub half_open_max: u32,
    /// Of these, logins from one address. 8 by default.
    pub half_open_per_source_max: u32,
    /// Buffers that all channels share, for data that are copied. 64 by default; a command that finds
    /// none free waits for one.
    pub buffers: u32,
    /// Bytes of such a buffer, and of the longest transfer of one command. 1 MiB by default; a multiple
    /// of 4 KiB.
    pub buffer_bytes: u32,
    /// Descriptors of the longest table. 4,096 by default: 4 KiB of data each is more than a buffer.
    pub table_entries_max: u32,
    /// Work requests on the send queue of a channel. 256 by default; 4 at least.
    pub send_depth: u32,
    /// Whether the answer to a command with a single descriptor invalidates that descriptor's key at the
    /// initiator. The protocol does not negotiate this: set it only for initiators that are known to expect it.
    /// Linux does not.
    pub remote_invalidate: bool,
    /// How long a channel may be silent before the initiator's device is probed: an initiator whose device does
    /// not answer loses its channel when the transport's retries run out, and its place is free again. 30 s by
    /// default; `None` keeps a silent channel for ever.
    pub keepalive: Option<Duration>,
}

impl TargetConfig {
    /// The shortest length of information units that an initiator may ask for.
    pub const IU_BYTES_MIN: u32 = LoginReq::LEN as u32;

    /// A target with that name.
    pub fn new(port_id: PortId) -> Self {
        Self {
            port_id,
            allow: None,
            port: 1,
            request_limit: 128,
            initial_limit: u16::MAX,
            iu_bytes: 8260,
            immediate: true,
            channels_max: 64,
            half_open_max: 32,
            half_open_per_source_max: 8,
            buffers: 64,
            buffer_bytes: 1 << 20,
            table_entries_max: 4096,
            send_depth: 256,
            remote_invalidate: false,
            keepalive: Some(Duration::from_secs(30)),
        }
    }

    /// Brings every value into its range.
    pub(super) fn checked(mut self) -> Self {
        self.request_limit = self.request_limit.clamp(1, 4096);
        self.initial_limit = self.initial_limit.clamp(1, self.request_limit);
        self.iu_bytes = self.iu_bytes.max(Self::IU_BYTES_MIN);
        self.channels_max = self.channels_max.max(1);
        self.half_open_max = self.half_open_max.max(1);
        self.half_open_per_source_max = self.half_open_per_source_max.clamp(1, self.half_open_max);
        self.buffers = self.buffers.max(1);
        self.buffer_bytes = self.buffer_bytes.max(1).next_multiple_of(4096);
        // A table is fetched into a buffer.
        self.table_entries_max = self.table_entries_max.min(self.buffer_bytes / 16);
        self.send_depth = self.send_depth.max(4);
        // A shorter one would be used up by the probe itself.
        self.keepalive = self
            .keepalive
            .map(|interval| interval.max(Duration::from_millis(100)));
        self
    }

    pub(super) fn admits(&self, initiator: PortId) -> bool {
        let allow = self.allow.as_ref();
        allow.is_none_or(|allow| allow.contains(&initiator))
    }
}
