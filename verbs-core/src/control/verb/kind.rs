//! The list of verbs, and their kinds.
//!
//! Adding a verb touches this list, the file of its noun, the imports of `types.rs`, and the providers that have it.

use std::fmt;

/// Makes the kinds out of the list.
macro_rules! kinds {
    ($($(#[$doc:meta])* $Verb:ident = $wire:literal)*) => {
        /// The verbs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Kind { $($(#[$doc])* $Verb),* }

        impl Kind {
            /// Every verb.
            pub const ALL: &'static [Self] = &[$(Self::$Verb),*];

            /// Names the verb in [bytes](crate::host::command): written by hand, and never used for another verb.
            pub const fn wire_id(self) -> u16 {
                match self { $(Self::$Verb => $wire),* }
            }

            /// The verb with that number.
            pub const fn of_wire_id(id: u16) -> Option<Self> {
                match id {
                    $($wire => Some(Self::$Verb),)*
                    _ => None,
                }
            }

            /// The verb's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Verb => stringify!($Verb)),* }
            }
        }
    };
}

/// Calls the macro `$then` with all verbs.
///
/// Their numbers stand in bytes that other processes, and later versions, read: a new verb gets the next one, wherever
/// it stands, and one that is taken out leaves its number unused.
macro_rules! for_each_verb {
    ($then:ident) => {
        $then! {
            /// Open the device.
            OpenDevice = 1
            /// Close the device.
            CloseDevice = 2
            /// Ask for the device's attributes.
            QueryDevice = 3
            /// Ask for a port's attributes.
            QueryPort = 4
            /// Ask for an entry of a port's P_Key table.
            QueryPkey = 5
            /// Ask for an entry of a port's GID table.
            QueryGid = 6
            /// Change what the device says of itself.
            ModifyDevice = 7
            /// Change a port.
            ModifyPort = 8
            /// Ask for the next asynchronous event.
            NextEvent = 9
            /// Call an extension.
            CallExtension = 10
            /// Allocate a protection domain.
            AllocPd = 11
            /// Deallocate a protection domain.
            DeallocPd = 12
            /// Allocate an XRC domain.
            AllocXrcd = 13
            /// Deallocate an XRC domain.
            DeallocXrcd = 14
            /// Create a completion queue.
            CreateCq = 15
            /// Ask for a completion queue's attributes.
            QueryCq = 52
            /// Change a completion queue's depth.
            ResizeCq = 16
            /// Change a completion queue's moderation.
            ModifyCq = 17
            /// Destroy a completion queue.
            DestroyCq = 18
            /// Create a shared receive queue.
            CreateSrq = 19
            /// Change a shared receive queue's depth or limit.
            ModifySrq = 20
            /// Ask for a shared receive queue's sizes and limit.
            QuerySrq = 21
            /// Destroy a shared receive queue.
            DestroySrq = 22
            /// Create a queue pair.
            CreateQp = 23
            /// Create an XRC target queue pair.
            CreateTargetQp = 24
            /// Open an XRC target queue pair.
            OpenTargetQp = 25
            /// Change a queue pair's attributes and state.
            ModifyQp = 26
            /// Change the depth of a queue pair's queues.
            ResizeQp = 53
            /// Ask for a queue pair's attributes.
            QueryQp = 27
            /// Destroy a queue pair.
            DestroyQp = 28
            /// Attach a queue pair to a multicast group.
            AttachMcast = 29
            /// Detach it.
            DetachMcast = 30
            /// Create an address handle.
            CreateAh = 31
            /// Change the address of an address handle.
            ModifyAh = 32
            /// Ask for the address of an address handle.
            QueryAh = 33
            /// Destroy an address handle.
            DestroyAh = 34
            /// Register memory.
            RegMr = 35
            /// Register the memory of a region once more.
            RegSharedMr = 54
            /// Ask for what is registered.
            QueryMr = 36
            /// Register memory again.
            ReregMr = 37
            /// Deregister memory.
            DeregMr = 38
            /// Allocate a region for fast registration.
            AllocMr = 39
            /// Register a list of pages.
            RegPages = 55
            /// Give a region for fast registration back.
            FreeMr = 40
            /// Allocate a memory window.
            AllocMw = 41
            /// Ask what a memory window shows.
            QueryMw = 56
            /// Deallocate a memory window.
            DeallocMw = 42
            /// Create a pool of fast memory regions.
            CreateFmrPool = 43
            /// Make the unused keys of a pool invalid.
            FlushFmrPool = 44
            /// Destroy a pool of fast memory regions.
            DestroyFmrPool = 45
            /// Bind an endpoint of the provider's connection manager.
            BindCm = 46
            /// Unbind it.
            UnbindCm = 47
            /// Listen for connections.
            ListenCm = 48
            /// Connect a queue pair.
            ConnectCm = 49
            /// Accept a connection.
            AcceptCm = 50
            /// Reject a connection.
            RejectCm = 51
        }
    };
}
pub(crate) use for_each_verb;

for_each_verb!(kinds);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
