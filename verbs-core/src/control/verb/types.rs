//! The types behind the table of verbs: which struct each name stands for, and which results are objects.
//!
//! The one file that knows all nouns. No other file imports it: what builds on the table reaches the types by the
//! traits that are implemented here.

use std::any::{Any, TypeId};

use crate::ah::{Ah, CreateAh, DestroyAh, ModifyAh, QueryAh};
use crate::cm::{AcceptCm, BindCm, CmEndpoint, ConnectCm, ListenCm, RejectCm, UnbindCm};
use crate::cq::{Cq, CreateCq, DestroyCq, ModifyCq, QueryCq, ResizeCq};
use crate::device::{
    CloseDevice, Device, ModifyDevice, ModifyPort, OpenDevice, QueryDevice, QueryGid, QueryPkey,
    QueryPort,
};
use crate::event::NextEvent;
use crate::extension::CallExtension;
use crate::fast_reg::{AllocMr, FastMr, FreeMr, RegPages};
use crate::fmr::{CreateFmrPool, DestroyFmrPool, FlushFmrPool, FmrPool};
use crate::mcast::{AttachMcast, DetachMcast, Mcast};
use crate::mr::{DeregMr, Mr, QueryMr, RegMr, RegSharedMr, ReregMr};
use crate::mw::{AllocMw, DeallocMw, Mw, QueryMw};
use crate::object::{Base, Handle, Target};
use crate::pd::{AllocPd, DeallocPd, Pd};
use crate::qp::{CreateQp, DestroyQp, ModifyQp, Qp, QueryQp, ResizeQp};
use crate::srq::{CreateSrq, DestroySrq, ModifySrq, QuerySrq, Srq};
use crate::verb::kind::for_each_verb;
use crate::verb::table::{Objects, VerbTypes, Verbs};
use crate::xrcd::{AllocXrcd, CreateTargetQp, DeallocXrcd, OpenTargetQp, Xrcd};

macro_rules! types {
    ($($(#[$doc:meta])* $Verb:ident = $wire:literal)*) => {
        impl VerbTypes for Verbs {
            $(type $Verb = $Verb;)*
        }
    };
}

for_each_verb!(types);

macro_rules! objects {
    ($($Handle:ident)*) => {
        impl Objects for Verbs {
            #[inline(always)]
            fn is_object<T: Any>() -> bool {
                false $(|| TypeId::of::<T>() == TypeId::of::<$Handle>())*
            }

            fn object_in(output: &dyn Any) -> Option<&Base> {
                fn of<H: Handle>(output: &dyn Any) -> Option<&Base> {
                    output
                        .downcast_ref::<H>()
                        .map(|handle| handle.core().base())
                }
                [$(of::<$Handle>),*].into_iter().find_map(|of| of(output))
            }

            fn named(args: &dyn Any) -> [Option<&Base>; 3] {
                named(args)
            }
        }
    };
}

objects! { Device Pd Xrcd Cq Srq Qp Mcast Ah Mr FastMr Mw FmrPool CmEndpoint }

fn named(args: &dyn Any) -> [Option<&Base>; 3] {
    if let Some(args) = args.downcast_ref::<CreateQp>() {
        let srq = args.srq().map(|srq| srq.base());
        return [
            Some(args.send_cq().base()),
            Some(args.recv_cq().base()),
            srq,
        ];
    }
    if let Some(args) = args.downcast_ref::<CreateSrq>() {
        return match args.xrc() {
            Some((xrcd, cq)) => [Some(xrcd.base()), Some(cq.base()), None],
            None => [None; 3],
        };
    }
    let one = if let Some(args) = args.downcast_ref::<ReregMr>() {
        args.pd().map(|pd| pd.base())
    } else if let Some(args) = args.downcast_ref::<RegSharedMr>() {
        Some(args.pd().base())
    } else if let Some(args) = args.downcast_ref::<ConnectCm>() {
        args.names()
    } else {
        args.downcast_ref::<AcceptCm>().and_then(AcceptCm::names)
    };
    [one, None, None]
}
