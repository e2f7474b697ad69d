//! What an interface has done, and what it has dropped.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an interface has done since it was made. Packets of ARP and neighbour discovery that it
        /// makes itself are not among those that it was given.
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
    /// Packets that came as datagrams.
    datagrams_received,
    /// Packets that came over connections.
    connected_received,
    /// Bytes of all packets that came.
    bytes_received,
    /// Questions about addresses that were sent, by ARP or neighbour discovery.
    asked,
    /// Answers that were sent.
    answered,
    /// Packets that another one pushed out while they waited.
    pushed_out,
    /// Packets whose neighbour did not answer.
    unresolved,
    /// Packets for whose neighbour there is no path, or whose group there is not.
    unreachable,
    /// Groups that the stack reported, for which there was no room.
    groups_full,
    /// Groups that were only sent to, and left after a time without a packet.
    groups_left,
    /// Packets that were too long for their way; their senders were told.
    too_big,
    /// Packets that the link was down for.
    link_down,
    /// Sends that completed in error.
    send_errors,
    /// Receives that completed in error.
    receive_errors,
    /// Messages that carried nothing that the interface knows.
    unknown,
    /// Paths that were asked for.
    paths_asked,
    /// Connections that were made by this end.
    connections_made,
    /// Connections that were accepted.
    connections_accepted,
    /// Connections that could not be made.
    connections_failed,
    /// Connections that nobody used any more.
    connections_reaped,
    /// Times that the link came up.
    link_ups,
    /// Times that the subnet was asked for everything again.
    refreshes,
}
