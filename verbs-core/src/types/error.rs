//! What can go wrong on the control path, sorted by the party at fault.
//!
//! Three types for three planes: [`Error`] for verbs, [`PostError`](crate::PostError) for post calls,
//! [`WcStatus`](crate::WcStatus) for completions.

use std::fmt;

use crate::caps::Capability;
use crate::qp_state::Transition;

/// Why a verb failed. `Copy` and small: details that own something ride in the verb's own error
/// type, such as [`Refused`](crate::Refused).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the caller ---
    /// An argument is outside its range; nothing was done.
    #[error("{attr} = {got} is out of range (at most {max})")]
    Invalid {
        /// Which argument.
        attr: Attr,
        /// The value that was passed.
        got: u32,
        /// The largest value that would be right.
        max: u32,
    },
    /// An argument does not fit the others or the object; nothing was done.
    #[error("{attr} does not fit here: {why}")]
    Mismatch {
        /// Which argument.
        attr: Attr,
        /// What is wrong with it.
        why: Why,
    },
    /// A queue cannot be made smaller than what is outstanding on it; nothing was done.
    #[error(
        "{attr} = {got} is too small: {outstanding} work requests are outstanding; ask for at least {outstanding}, or \
         wait until fewer are"
    )]
    Outstanding {
        /// Which depth.
        attr: Attr,
        /// The depth that was asked for.
        got: u32,
        /// Work requests that are posted and not finished.
        outstanding: u32,
    },
    /// A range of bytes leaves the memory that it was to lie in; nothing was done.
    #[error("the range ends at byte {end} of memory that has {size}")]
    OutOfRange {
        /// One past the last byte that was asked for.
        end: ByteCount,
        /// The bytes that there are.
        size: ByteCount,
    },
    /// The queue pair cannot go from its state to that one with these attributes.
    #[error("{0}")]
    Transition(Transition),
    /// Other objects still use this one (K10).
    #[error("the object is in use by other objects; destroy those first")]
    Busy,
    /// The object's destroy was accepted already (K11).
    #[error("the object is being destroyed")]
    Closing,
    /// The port number is in use at the address that an endpoint was to be bound to, by another endpoint or by an
    /// ordinary socket of the host; nothing is bound.
    #[error("port {port} of that address is in use")]
    AddrInUse {
        /// The number; 0 when none was free.
        port: u16,
    },
    /// The address is none of the device's; nothing is bound.
    #[error("the device does not have that address")]
    AddrNotAvailable,
    /// A blocking call under NoBlock; nothing was done (K3).
    #[error("this call may wait, and the caller is in a context that must not")]
    WouldBlock,
    /// The client that the request was made for may not name this memory or object.
    #[error("the client has no right to this object or memory")]
    AccessDenied,
    /// The request was cancelled before it had any effect (K8).
    #[error("the request was cancelled")]
    Cancelled,

    // --- the device ---
    /// The device has gone; everything pending on it ends this way (K15).
    #[error("the device was removed")]
    DeviceRemoved,
    /// The device does not have this verb or option, for which there is no capability bit.
    #[error("the device does not support {0}")]
    Unsupported(Attr),
    /// The device does not have this verb or option: the capability that it takes is missing.
    #[error("the device does not support {attr}: {missing}")]
    NoCapability {
        /// What was asked for.
        attr: Attr,
        /// What the device does not have.
        missing: Capability,
    },
    /// The device reported a failure of its own (an injected one, for instance).
    #[error("the device failed the command")]
    DeviceFailed,

    /// The device's driver or the system refused the command, for a reason that has a number.
    #[error("the system refused the command: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The number, as `errno` has it.
        errno: i32,
    },

    // --- a limit ---
    /// Too many requests are pending on the device.
    #[error("{max} requests are pending on the device already; wait for one to complete")]
    TooManyRequests {
        /// The device's limit.
        max: u32,
    },
    /// The device has no room for another object of this kind.
    #[error("the device has no room for more: {attr} is at its limit of {max}")]
    Exhausted {
        /// What ran out.
        attr: Attr,
        /// The limit.
        max: u32,
    },
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,

    // --- ourselves ---
    /// A provider dropped the command without completing it (K7): a defect of the provider.
    #[error("the provider dropped the command without answering (a defect of the provider)")]
    Dropped,
}

impl Error {
    /// Whether the device does not have what was asked for, so that asking again is of no use.
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_) | Self::NoCapability { .. })
    }
}

/// A number of bytes in 56 bits, so that two of them fit into an [`Error`]; larger ones count as the
/// largest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteCount([u8; 7]);

impl ByteCount {
    /// The largest count.
    pub const MAX: Self = Self([0xff; 7]);

    /// That many bytes, or the largest count if there are more.
    pub const fn new(bytes: u64) -> Self {
        match bytes.to_be_bytes() {
            [0, a, b, c, d, e, f, g] => Self([a, b, c, d, e, f, g]),
            _ => Self::MAX,
        }
    }

    /// The number of bytes.
    pub const fn value(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_be_bytes([0, a, b, c, d, e, f, g])
    }
}

impl fmt::Debug for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteCount({self})")
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$item])* $variant,)* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

named! {
    /// The arguments that an [`Error`] can speak of, by the names the field uses.
    Attr {
        /// Port number.
        Port = "port_num",
        /// Index into the P_Key table.
        PkeyIndex = "pkey_index",
        /// Index into the GID table.
        GidIndex = "gid_index",
        /// Depth of a completion queue.
        Cqe = "cqe",
        /// Number of completion queues.
        MaxCq = "max_cq",
        /// Completion vector.
        CompVector = "comp_vector",
        /// Completions with times.
        Timestamps = "timestamps of completions",
        /// Number of queue pairs.
        MaxQp = "max_qp",
        /// Type of a queue pair.
        QpType = "qp_type",
        /// Depth of the send queue.
        MaxSendWr = "max_send_wr",
        /// Depth of the receive queue.
        MaxRecvWr = "max_recv_wr",
        /// Scatter/gather elements of a send.
        MaxSendSge = "max_send_sge",
        /// Scatter/gather elements of a receive.
        MaxRecvSge = "max_recv_sge",
        /// Bytes of inline data.
        MaxInlineData = "max_inline_data",
        /// Low-latency creation flag.
        LowLatency = "the low-latency creation flag",
        /// Number of protection domains.
        MaxPd = "max_pd",
        /// Number of memory regions.
        MaxMr = "max_mr",
        /// Pages of a fast registration.
        PageList = "the page list",
        /// Number of memory windows.
        MaxMw = "max_mw",
        /// Number of pools of fast memory regions.
        MaxFmr = "max_fmr",
        /// Bytes of a memory region.
        MrSize = "max_mr_size",
        /// Access flags.
        Access = "access flags",
        /// A local or remote key.
        Key = "the key",
        /// Virtual address a region is reached at.
        Iova = "iova",
        /// Number of shared receive queues.
        MaxSrq = "max_srq",
        /// Depth of a shared receive queue.
        MaxSrqWr = "max_srq_wr",
        /// Limit of a shared receive queue.
        SrqLimit = "srq_limit",
        /// Number of address handles.
        MaxAh = "max_ah",
        /// Number of multicast attachments.
        MaxMcast = "max_mcast_qp_attach",
        /// Number of multicast groups.
        MaxMcastGrp = "max_mcast_grp",
        /// A multicast GID.
        Mgid = "mgid",
        /// An XRC domain.
        Xrcd = "xrcd",
        /// Number of an XRC target queue pair.
        TargetQpn = "the number of the target queue pair",
        /// Number of XRC domains.
        MaxXrcd = "max_xrcd",
        /// Path MTU.
        PathMtu = "path_mtu",
        /// Destination queue pair number.
        DestQpn = "dest_qp_num",
        /// Responder's RNR timer code.
        MinRnrTimer = "min_rnr_timer",
        /// Local ACK timeout code.
        Timeout = "timeout",
        /// Transport retry counter.
        RetryCnt = "retry_cnt",
        /// RNR retry counter.
        RnrRetry = "rnr_retry",
        /// Outstanding READs and atomics as requester.
        MaxRdAtomic = "max_rd_atomic",
        /// Outstanding READs and atomics as responder.
        MaxDestRdAtomic = "max_dest_rd_atomic",
        /// Address vector.
        Av = "ah_attr",
        /// Alternate path.
        AltPath = "alt_path",
        /// State of path migration.
        PathMigState = "path_mig_state",
        /// CQ moderation.
        Moderation = "cq moderation",
        /// The completion queue an object names.
        Cq = "the completion queue",
        /// The protection domain an object names.
        Pd = "the protection domain",
        /// The queue pair an object names.
        Qp = "the queue pair",
        /// A local address.
        Address = "the address",
        /// An endpoint of the provider's connection manager.
        CmEndpoint = "the endpoint",
        /// Bytes of private data.
        PrivateData = "private_data_len",
        /// READs and atomics that a connection serves at a time.
        ResponderResources = "responder_resources",
        /// READs and atomics that a connection may have outstanding.
        InitiatorDepth = "initiator_depth",
        /// Number of TCP ports that are held.
        MaxTcpPort = "TCP ports",
        /// The shared receive queue an object names.
        Srq = "the shared receive queue",
        /// The device an object belongs to.
        Device = "the device",
        /// Identifies the system that the node is part of.
        SysImageGuid = "sys_image_guid",
        /// What people call the node.
        NodeDesc = "node_desc",
        /// A whole verb.
        Verb = "this verb",
        /// A typed extension.
        Extension = "this extension",
        /// Memory windows.
        MemoryWindow = "memory windows",
        /// Atomic operations.
        Atomics = "atomic operations",
        /// Number of pending requests.
        Requests = "pending requests",
    }
}

named! {
    /// Why an argument that is in range is wrong all the same.
    Why {
        /// It belongs to another device.
        OtherDevice = "it belongs to another device",
        /// It belongs to another protection domain.
        OtherPd = "it belongs to another protection domain",
        /// Remote write or atomic access without local write.
        NeedsLocalWrite = "remote write and remote atomic access need LOCAL_WRITE as well",
        /// Must not be zero.
        Zero = "it must not be zero",
        /// Must be a multicast GID.
        NotMulticast = "it is not a multicast address",
        /// Must be a unicast GID.
        Multicast = "it is a multicast address",
        /// There is no answer at that address.
        Unreachable = "nobody is reachable at that address",
        /// Only datagram queue pairs can do this.
        NotDatagram = "the queue pair is not a datagram queue pair",
        /// Initiators of extended reliable connections receive nothing.
        NoReceives = "the queue pair receives nothing",
        /// The queue pair has no queue of its own.
        UsesSrq = "the queue pair takes its receives from a shared receive queue",
        /// More entries wait than fit.
        StillUsed = "more entries are in use than would fit",
        /// Already exists.
        Exists = "it exists already",
        /// Does not exist.
        Missing = "it does not exist",
        /// Both address and length must fit the address space.
        Overflow = "address plus length leaves the address space",
        /// The address is not aligned as it has to be.
        Alignment = "it is not aligned as required",
        /// The bytes are none of what is called.
        Malformed = "its bytes are not what the extension takes",
        /// The object is in no state for that.
        State = "the object is not in a state for it",
        /// Where connections are the provider's, a queue pair gets ready to send by one.
        NeedsConnection = "only a connection takes it there (connect, accept or adopt)",
    }
}
