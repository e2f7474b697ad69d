//! The counters of an interface.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an interface since it was created. Its own packets of ARP and neighbour discovery are not
        /// counted as packets that it was given.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets posted as datagrams.
    datagrams_sent,
    /// Packets posted on connections.
    connected_sent,
    /// Bytes of all packets posted, without headers of the link.
    bytes_sent,
    /// Packets received as datagrams.
    datagrams_received,
    /// Packets received on connections.
    connected_received,
    /// Bytes of all packets received.
    bytes_received,
    /// Solicitations sent, by ARP or neighbour discovery.
    asked,
    /// Answers sent.
    answered,
    /// Waiting packets that were dropped for newer ones.
    pushed_out,
    /// Packets whose neighbour did not answer.
    unresolved,
    /// Packets to neighbours without a path, or to groups that do not exist.
    unreachable,
    /// Groups that the stack reported, for which there was no room.
    groups_full,
    /// Groups joined only for sending, and left after a time without a packet.
    groups_left,
    /// Packets that were too long for their path; their senders were notified.
    too_big,
    /// Packets dropped because the link was down.
    link_down,
    /// Sends that completed in error.
    send_errors,
    /// Receives that completed in error.
    receive_errors,
    /// Messages with an unknown protocol.
    unknown,
    /// Paths requested from the administrator.
    paths_asked,
    /// Connections made by this end.
    connections_made,
    /// Connections accepted.
    connections_accepted,
    /// Connections that could not be made.
    connections_failed,
    /// Connections ended because they were unused.
    connections_reaped,
    /// Times that the link came up.
    link_ups,
    /// Times that all paths and groups were requested from the subnet again.
    refreshes,
}
