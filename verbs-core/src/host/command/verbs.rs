//! The verbs, with plain arguments.

use std::net::SocketAddr;

use crate::addr::{Gid, Guid, Lid, PKey, Qpn};
use crate::caps::{DeviceAttr, PortAttr};
use crate::cm::{CmParam, CmReply};
use crate::command::Kind;
use crate::cq::CqInfo;
use crate::event::AsyncEvent;
use crate::fmr::FmrPoolAttr;
use crate::host::bytes::{Encode, Malformed, Reader};
use crate::host::command::attr::Made;
use crate::host::handle::Handle;
use crate::mem::{Access, Layout, WindowType};
use crate::mr::MrInfo;
use crate::mw::MwInfo;
use crate::qp_attr::{Av, QpAttr, QpCap, QpInfo};
use crate::qp_state::QpType;
use crate::srq::SrqAttr;
use crate::xrcd::XrcdName;

/// Makes both enums, and their bytes, of one table: the verbs of `verb/kind.rs`, each with its arguments and its result.
macro_rules! calls {
    ($($Verb:ident { $($arg:ident: $Arg:ty),* $(,)? } => $Output:ty;)*) => {
        /// A verb with its arguments. What it acts on is the command's target; other objects are named by handles.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the fields are those of the verb of that name")]
        pub enum Call { $(
            #[doc = concat!("[`Kind::", stringify!($Verb), "`].")]
            $Verb { $($arg: $Arg),* },
        )* }

        impl Call {
            /// Which verb.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$Verb { .. } => Kind::$Verb),* }
            }

            pub(super) fn put(&self, out: &mut Vec<u8>) {
                match self { $(Self::$Verb { $($arg),* } => { $($arg.put(out);)* let _ = &out; })* }
            }

            pub(super) fn take(kind: Kind, from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let _ = &from;
                match kind { $(Kind::$Verb => Ok(Self::$Verb { $($arg: from.read::<$Arg>()?),* })),* }
            }
        }

        /// What a verb yields.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Answer { $(
            #[doc = concat!("Of [`Kind::", stringify!($Verb), "`].")]
            $Verb($Output),
        )* }

        impl Answer {
            /// Of which verb.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$Verb(_) => Kind::$Verb),* }
            }

            pub(super) fn put(&self, out: &mut Vec<u8>) {
                match self { $(Self::$Verb(output) => output.put(out)),* }
            }

            pub(super) fn take(kind: Kind, from: &mut Reader<'_>) -> Result<Self, Malformed> {
                match kind { $(Kind::$Verb => from.read::<$Output>().map(Self::$Verb)),* }
            }
        }
    };
}

calls! {
    OpenDevice {} => ();
    CloseDevice { when_idle: bool } => ();
    QueryDevice {} => Box<DeviceAttr>;
    QueryPort { port: u8 } => PortAttr;
    QueryPkey { port: u8, index: u16 } => PKey;
    QueryGid { port: u8, index: u16 } => Gid;
    ModifyDevice { node_desc: Option<String>, sys_image_guid: Option<Guid> } => ();
    ModifyPort { port: u8, reset_qkey_viol_cntr: bool, set_caps: u32, clear_caps: u32 } => ();
    NextEvent {} => AsyncEvent;
    // Types of extensions have no form as bytes unless one is agreed on: input and output are whatever the two sides mean.
    CallExtension { name: String, input: Vec<u8> } => Vec<u8>;
    AllocPd {} => Made;
    DeallocPd { when_idle: bool } => ();
    AllocXrcd { name: Option<XrcdName> } => Made;
    DeallocXrcd { when_idle: bool } => ();
    CreateCq { cqe: u32, comp_vector: u32, timestamps: bool } => Made;
    QueryCq {} => CqInfo;
    ResizeCq { cqe: u32 } => u32;
    ModifyCq { count: u16, period_us: u32 } => ();
    DestroyCq { when_idle: bool } => ();
    CreateSrq { xrc: Option<(Handle, Handle)>, attr: SrqAttr } => Made;
    ModifySrq { max_wr: Option<u32>, srq_limit: Option<u32> } => ();
    QuerySrq {} => SrqAttr;
    DestroySrq { when_idle: bool } => ();
    CreateQp {
        send_cq: Handle, recv_cq: Handle, srq: Option<Handle>, qp_type: QpType, cap: QpCap, sq_sig_all: bool,
        low_latency: bool, block_multicast_loopback: bool,
    } => (Made, QpCap);
    CreateTargetQp {} => Made;
    OpenTargetQp { qpn: Qpn } => Made;
    ModifyQp { attr: QpAttr } => ();
    ResizeQp { max_send_wr: Option<u32>, max_recv_wr: Option<u32> } => QpCap;
    QueryQp {} => Box<QpInfo>;
    DestroyQp { when_idle: bool } => ();
    AttachMcast { mgid: Gid, mlid: Lid } => Made;
    DetachMcast {} => ();
    CreateAh { av: Av } => Made;
    ModifyAh { av: Av } => ();
    QueryAh {} => Av;
    DestroyAh {} => ();
    RegMr { len: u64, access: Access } => (Made, MrInfo);
    RegSharedMr { pd: Handle, access: Access } => (Made, MrInfo);
    QueryMr {} => MrInfo;
    ReregMr { len: Option<u64>, access: Option<Access>, pd: Option<Handle>, keeps_keys: bool } => (Made, MrInfo);
    DeregMr { when_idle: bool } => ();
    AllocMr { max_pages: u32, layout: Layout } => Made;
    // Pieces of regions that the client has: the region, the first byte and the length.
    RegPages { layout: Layout, pieces: Vec<(Handle, (u64, u32))>, access: Access } => Made;
    FreeMr {} => ();
    AllocMw { window_type: WindowType } => Made;
    QueryMw {} => MwInfo;
    DeallocMw {} => ();
    CreateFmrPool { attr: FmrPoolAttr } => Made;
    FlushFmrPool {} => ();
    DestroyFmrPool { when_idle: bool } => ();
    BindCm { local: SocketAddr } => (Made, SocketAddr);
    UnbindCm {} => ();
    ListenCm { backlog: u32 } => ();
    ConnectCm { qp: Handle, remote: SocketAddr, param: CmParam, private_data: Vec<u8> } => CmReply;
    AcceptCm { qp: Handle, param: CmParam, private_data: Vec<u8> } => ();
    RejectCm { private_data: Vec<u8> } => ();
}
