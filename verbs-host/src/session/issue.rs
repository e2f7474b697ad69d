//! Each verb, as a request.

use std::time::Duration;

use verbs_core::device::ModifyDevice;
use verbs_core::host::Handle;
use verbs_core::host::command::{Answer, Call, Failure};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Attr, Cq, Device, Error, Extent, Layout, Memory, Mr, Pd, QpInit, Request,
};

use super::done::Done;
use super::object::Object;

/// Verbs on the device.
pub(super) fn on_device(device: &Device, call: Call, done: Done) {
    match call {
        Call::QueryDevice {} => done.issue(device.query(), |attr| {
            Answer::QueryDevice(Box::new((*attr).clone()))
        }),
        Call::QueryPort { port } => done.issue(device.query_port(port), Answer::QueryPort),
        Call::QueryPkey { port, index } => {
            done.issue(device.query_pkey(port, index), Answer::QueryPkey);
        }
        Call::QueryGid { port, index } => {
            done.issue(device.query_gid(port, index), Answer::QueryGid);
        }
        Call::ModifyDevice {
            node_desc,
            sys_image_guid,
        } => {
            let change = ModifyDevice {
                node_desc,
                sys_image_guid,
            };
            done.issue(device.modify(change), Answer::ModifyDevice);
        }
        Call::ModifyPort {
            port,
            reset_qkey_viol_cntr,
            set_caps,
            clear_caps,
        } => {
            let request = device
                .modify_port(port)
                .set_caps(set_caps)
                .clear_caps(clear_caps);
            let request = match reset_qkey_viol_cntr {
                true => request.reset_qkey_violations(),
                false => request,
            };
            done.issue(request, Answer::ModifyPort);
        }
        Call::NextEvent {} => done.issue(device.next_event(), Answer::NextEvent),
        Call::CreateCq {
            cqe,
            comp_vector,
            timestamps,
        } => {
            let request = device.create_cq(cqe).comp_vector(comp_vector);
            let request = match timestamps {
                true => request.timestamps(),
                false => request,
            };
            make(done, request, Object::Cq, Answer::CreateCq);
        }
        Call::AllocPd {} => make(done, device.alloc_pd(), Object::Pd, Answer::AllocPd),
        Call::AllocXrcd { name } => {
            make(done, device.xrcd_of(name), Object::Xrcd, Answer::AllocXrcd);
        }
        Call::BindCm { .. } => done.refuse(Error::Unsupported(Attr::Verb)),
        Call::CallExtension { .. } => done.refuse(Error::Unsupported(Attr::Extension)),
        _ => done.refuse(Error::AccessDenied),
    }
}

/// A create of an object that has no memory of its own.
fn make<V: verbs_core::Verb<Error = Error>>(
    done: Done,
    request: Request<'_, V>,
    object: impl FnOnce(V::Output) -> Object + Send + 'static,
    answer: impl FnOnce(verbs_core::host::command::Made) -> Answer + Send + 'static,
) {
    match done.admit(0) {
        Ok(()) => done.create(request, object, |made, _| answer(made)),
        Err(failure) => done.fail(failure),
    }
}

/// Verbs on an object of the client.
pub(super) fn on_object(handle: Handle, object: Arc<Object>, call: Call, done: Done) {
    match (&*object, call) {
        (Object::Pd(pd), call) if !matches!(call, Call::DeallocPd { .. }) => on_pd(pd, call, done),
        (Object::Cq(cq), Call::ModifyCq { count, period_us }) => {
            let period = Duration::from_micros(period_us.into());
            done.issue(cq.moderate(count, period), Answer::ModifyCq);
        }
        (Object::Cq(cq), Call::QueryCq {}) => done.issue(cq.query(), Answer::QueryCq),
        (Object::Mw(mw), Call::QueryMw {}) => done.issue(mw.query(), Answer::QueryMw),
        (
            Object::Qp(qp),
            Call::ResizeQp {
                max_send_wr,
                max_recv_wr,
            },
        ) => {
            let request = qp.resize();
            let request = match max_send_wr {
                Some(depth) => request.send(depth),
                None => request,
            };
            let request = match max_recv_wr {
                Some(depth) => request.recv(depth),
                None => request,
            };
            done.issue(request, Answer::ResizeQp);
        }
        (Object::Mr(mr), Call::RegSharedMr { pd, access }) => share(mr, pd, access, done),
        (Object::Cq(_), Call::ResizeCq { cqe }) => resize(handle, object, cqe, done),
        (Object::Srq(srq), Call::ModifySrq { max_wr, srq_limit }) => {
            done.issue(srq.modify(max_wr, srq_limit), Answer::ModifySrq);
        }
        (Object::Srq(srq), Call::QuerySrq {}) => done.issue(srq.query(), Answer::QuerySrq),
        (Object::Qp(qp), Call::ModifyQp { attr }) => done.issue(qp.modify(attr), Answer::ModifyQp),
        (Object::Qp(qp), Call::QueryQp {}) => done.issue(qp.query(), Answer::QueryQp),
        (Object::Qp(qp), Call::AttachMcast { mgid, mlid }) => {
            let request = qp.attach_mcast(mgid, mlid);
            make(done, request, Object::Mcast, Answer::AttachMcast);
        }
        (Object::Xrcd(xrcd), Call::CreateTargetQp {}) => {
            make(
                done,
                xrcd.create_target_qp(),
                Object::Qp,
                Answer::CreateTargetQp,
            );
        }
        (Object::Xrcd(xrcd), Call::OpenTargetQp { qpn }) => {
            make(
                done,
                xrcd.open_target_qp(qpn),
                Object::Qp,
                Answer::OpenTargetQp,
            );
        }
        (Object::Ah(ah), Call::ModifyAh { av }) => done.issue(ah.modify(av), Answer::ModifyAh),
        (Object::Ah(ah), Call::QueryAh {}) => done.issue(ah.query(), Answer::QueryAh),
        (Object::Mr(mr), Call::QueryMr {}) => done.issue(mr.query(), Answer::QueryMr),
        (Object::FmrPool(pool), Call::FlushFmrPool {}) => {
            done.issue(pool.flush(), Answer::FlushFmrPool);
        }
        (Object::Mr(_), call @ Call::ReregMr { .. }) => rereg(handle, object, call, done),
        (_, call) => consume(handle, object, call, done),
    }
}

fn on_pd(pd: &Pd, call: Call, done: Done) {
    match call {
        Call::CreateSrq { xrc: None, attr } => {
            let request = pd.create_srq(attr.max_wr, attr.max_sge);
            make(done, request, Object::Srq, Answer::CreateSrq);
        }
        Call::CreateSrq {
            xrc: Some((xrcd, cq)),
            attr,
        } => match (done.find(xrcd).as_deref(), done.find(cq).as_deref()) {
            (Ok(Object::Xrcd(xrcd)), Ok(Object::Cq(cq))) => {
                let request = pd.create_xrc_srq(xrcd, cq, attr.max_wr, attr.max_sge);
                make(done, request, Object::Srq, Answer::CreateSrq);
            }
            _ => done.refuse(Error::AccessDenied),
        },
        call @ Call::CreateQp { .. } => create_qp(pd, call, done),
        Call::CreateAh { av } => make(done, pd.create_ah(av), Object::Ah, Answer::CreateAh),
        Call::RegMr { len, access } => {
            if let Err(failure) = done.admit(len) {
                return done.fail(failure);
            }
            match allocate(len) {
                Ok(memory) => {
                    let request = pd.register(memory, access).on_behalf_of(done.origin);
                    request.issue(move |result| match result {
                        Ok(mr) => done.enter(Object::Mr(mr), |made, object| {
                            Answer::RegMr((made, info_of(object)))
                        }),
                        Err(error) => {
                            done.give_back(len);
                            done.refuse(error);
                        }
                    });
                }
                Err(error) => {
                    done.give_back(len);
                    done.refuse(error);
                }
            }
        }
        Call::AllocMr { max_pages, layout } => {
            let request = pd.alloc_mr(max_pages).layout(layout);
            make(done, request, Object::FastMr, Answer::AllocMr);
        }
        Call::RegPages {
            layout,
            pieces,
            access,
        } => register_pages(pd, layout, &pieces, access, done),
        Call::AllocMw { window_type } => {
            make(done, pd.alloc_mw(window_type), Object::Mw, Answer::AllocMw);
        }
        Call::CreateFmrPool { attr } => {
            make(
                done,
                pd.create_fmr_pool(attr),
                Object::FmrPool,
                Answer::CreateFmrPool,
            );
        }
        _ => done.refuse(Error::AccessDenied),
    }
}

fn create_qp(pd: &Pd, call: Call, done: Done) {
    let Call::CreateQp {
        send_cq,
        recv_cq,
        srq,
        qp_type,
        cap,
        sq_sig_all,
        low_latency,
        block_multicast_loopback,
    } = call
    else {
        return done.refuse(Error::AccessDenied);
    };
    let srq = match srq.map(|srq| done.find(srq)).transpose() {
        Ok(srq) => srq,
        Err(failure) => return done.fail(failure),
    };
    let (send, recv) = (done.find(send_cq), done.find(recv_cq));
    let (Ok(Object::Cq(send)), Ok(Object::Cq(recv))) = (send.as_deref(), recv.as_deref()) else {
        return done.refuse(Error::AccessDenied);
    };
    let mut init = QpInit::of(qp_type, send, recv).cap(cap);
    match srq.as_deref() {
        Some(Object::Srq(srq)) => init = init.srq(srq),
        Some(_) => return done.refuse(Error::AccessDenied),
        None => {}
    }
    if sq_sig_all {
        init = init.signal_all();
    }
    if low_latency {
        init = init.low_latency();
    }
    if block_multicast_loopback {
        init = init.block_multicast_loopback();
    }
    match done.admit(0) {
        Ok(()) => done.create(pd.create_qp(init), Object::Qp, move |made, object| {
            let got = match object {
                Object::Qp(qp) => qp.cap(),
                _ => cap,
            };
            Answer::CreateQp((made, got))
        }),
        Err(failure) => done.fail(failure),
    }
}

/// A resize needs exclusive access to the queue.
fn resize(handle: Handle, object: Arc<Object>, cqe: u32, done: Done) {
    match done.take(handle, object) {
        Ok(Object::Cq(mut cq)) => {
            let back = Done::new(done.state(), done.origin, Box::new(|_| {}));
            done.issue(Cq::resize(&mut cq, cqe), Answer::ResizeCq);
            back.restore(handle, Object::Cq(cq));
        }
        Ok(other) => {
            done.restore(handle, other);
            done.refuse(Error::AccessDenied);
        }
        Err(failure) => done.fail(failure),
    }
}

/// Registers the memory of a region once more. It counts as memory of the client again, because it is deducted with
/// each region.
fn share(mr: &Mr, pd: Handle, access: Access, done: Done) {
    let found = match done.find(pd) {
        Ok(found) => found,
        Err(failure) => return done.fail(failure),
    };
    let Object::Pd(pd) = &*found else {
        return done.refuse(Error::AccessDenied);
    };
    let len = mr.len() as u64;
    if let Err(failure) = done.admit(len) {
        return done.fail(failure);
    }
    let request = mr.register_shared(pd, access).on_behalf_of(done.origin);
    request.issue(move |result| match result {
        Ok(mr) => done.enter(Object::Mr(mr), |made, object| {
            Answer::RegSharedMr((made, info_of(object)))
        }),
        Err(error) => {
            done.give_back(len);
            done.refuse(error);
        }
    });
}

/// Registers pieces of the client's regions.
fn register_pages(
    pd: &Pd,
    layout: Layout,
    pieces: &[(Handle, (u64, u32))],
    access: Access,
    done: Done,
) {
    let mut found = Vec::new();
    for &(handle, (offset, len)) in pieces {
        match done.find(handle) {
            Ok(object) => found.push((object, offset, len)),
            Err(failure) => return done.fail(failure),
        }
    }
    let mut extents = Vec::new();
    for (object, offset, len) in &found {
        let (Object::Mr(mr), Ok(offset)) = (&**object, usize::try_from(*offset)) else {
            return done.refuse(Error::AccessDenied);
        };
        extents.push(Extent {
            memory: mr.memory(),
            offset,
            len: *len,
        });
    }
    let request = pd.register_pages(layout, extents, access);
    make(done, request, Object::FastMr, Answer::RegPages);
}

/// Registers memory again: the region gets another handle.
fn rereg(handle: Handle, object: Arc<Object>, call: Call, done: Done) {
    let Call::ReregMr {
        len,
        access,
        pd,
        keeps_keys,
    } = call
    else {
        return done.refuse(Error::AccessDenied);
    };
    let pd = match find_pd(pd, &done) {
        Ok(pd) => pd,
        Err(failure) => return done.fail(failure),
    };
    let bytes = len.unwrap_or(0);
    if let Err(failure) = done.admit(bytes) {
        return done.fail(failure);
    }
    let old = match take_region(handle, object, &done) {
        Ok(mr) => mr,
        Err(failure) => {
            done.give_back(bytes);
            return done.fail(failure);
        }
    };
    let old_bytes = old.len() as u64;
    let memory = match len.map(allocate).transpose() {
        Ok(memory) => memory,
        Err(error) => {
            done.give_back(bytes);
            done.restore(handle, Object::Mr(old));
            return done.refuse(error);
        }
    };
    let has_new = memory.is_some();
    let mut request = Mr::rereg(old);
    if let Some(memory) = memory {
        request = request.memory(memory);
    }
    if let Some(access) = access {
        request = request.access(access);
    }
    if keeps_keys {
        request = request.keep_keys();
    }
    if let Some(Object::Pd(pd)) = pd.as_deref() {
        request = request.pd(pd);
    }
    request
        .on_behalf_of(done.origin)
        .issue(move |result| match result {
            Ok(mr) => {
                done.forget(handle, if has_new { old_bytes } else { 0 });
                done.enter(Object::Mr(mr), |made, object| {
                    Answer::ReregMr((made, info_of(object)))
                });
            }
            Err(refused) => {
                let failure = super::done::failure_of(&refused);
                done.give_back(bytes);
                match refused.handle {
                    Some(old) => done.restore(handle, Object::Mr(old)),
                    None => done.forget(handle, old_bytes),
                }
                done.fail(failure);
            }
        });
}

/// The protection domain that a region moves to, if it moves.
fn find_pd(pd: Option<Handle>, done: &Done) -> Result<Option<Arc<Object>>, Failure> {
    let pd = pd.map(|pd| done.find(pd)).transpose()?;
    match pd.as_deref() {
        None | Some(Object::Pd(_)) => Ok(pd),
        Some(_) => Err(Failure::Verb(Error::AccessDenied)),
    }
}

/// Takes a region out; any other object stays.
fn take_region(handle: Handle, object: Arc<Object>, done: &Done) -> Result<Mr, Failure> {
    match done.take(handle, object)? {
        Object::Mr(mr) => Ok(mr),
        other => {
            done.restore(handle, other);
            Err(Failure::Verb(Error::AccessDenied))
        }
    }
}

fn allocate(len: u64) -> Result<Memory, Error> {
    Memory::alloc(usize::try_from(len).map_err(|_| Error::NoMemory)?)
}

fn info_of(object: &Object) -> verbs_core::mr::MrInfo {
    match object {
        Object::Mr(mr) => mr.target().info(),
        _ => unreachable!("regions are what is registered"),
    }
}

/// Destroys an object. A command that is not the destroy of that kind of object is refused, and the object stays.
fn consume(handle: Handle, object: Arc<Object>, call: Call, done: Done) {
    let is_destroy = call.kind().destroys();
    if !is_destroy {
        return done.refuse(Error::AccessDenied);
    }
    let object = match done.take(handle, object) {
        Ok(object) => object,
        Err(failure) => return done.fail(failure),
    };
    let at = (handle, object.bytes());
    macro_rules! when {
        ($idle:expr, $object:ident, $now:ident, $later:ident) => {
            if $idle {
                $object.$later()
            } else {
                $object.$now()
            }
        };
    }
    match (object, call) {
        (Object::Pd(pd), Call::DeallocPd { when_idle }) => {
            let request = when!(when_idle, pd, dealloc, dealloc_when_idle);
            done.destroy(at, request, Object::Pd, Answer::DeallocPd(()));
        }
        (Object::Xrcd(xrcd), Call::DeallocXrcd { when_idle }) => {
            let request = when!(when_idle, xrcd, dealloc, dealloc_when_idle);
            done.destroy(at, request, Object::Xrcd, Answer::DeallocXrcd(()));
        }
        (Object::Cq(cq), Call::DestroyCq { when_idle }) => {
            let request = when!(when_idle, cq, destroy, destroy_when_idle);
            done.destroy(at, request, Object::Cq, Answer::DestroyCq(()));
        }
        (Object::Srq(srq), Call::DestroySrq { when_idle }) => {
            let request = when!(when_idle, srq, destroy, destroy_when_idle);
            done.destroy(at, request, Object::Srq, Answer::DestroySrq(()));
        }
        (Object::Qp(qp), Call::DestroyQp { when_idle }) => {
            let request = when!(when_idle, qp, destroy, destroy_when_idle);
            done.destroy(at, request, Object::Qp, Answer::DestroyQp(()));
        }
        (Object::Mr(mr), Call::DeregMr { when_idle }) => {
            let request = when!(when_idle, mr, dereg, dereg_when_idle);
            done.destroy(at, request, Object::Mr, Answer::DeregMr(()));
        }
        (Object::FmrPool(pool), Call::DestroyFmrPool { when_idle }) => {
            let request = when!(when_idle, pool, destroy, destroy_when_idle);
            done.destroy(at, request, Object::FmrPool, Answer::DestroyFmrPool(()));
        }
        (Object::FastMr(mr), Call::FreeMr {}) => {
            done.destroy(at, mr.free(), Object::FastMr, Answer::FreeMr(()));
        }
        (Object::Mw(mw), Call::DeallocMw {}) => {
            done.destroy(at, mw.dealloc(), Object::Mw, Answer::DeallocMw(()));
        }
        (Object::Ah(ah), Call::DestroyAh {}) => {
            done.destroy(at, ah.destroy(), Object::Ah, Answer::DestroyAh(()));
        }
        (Object::Mcast(mcast), Call::DetachMcast {}) => {
            done.destroy(at, mcast.detach(), Object::Mcast, Answer::DetachMcast(()));
        }
        (object, _) => {
            done.restore(handle, object);
            done.fail(Failure::Verb(Error::AccessDenied));
        }
    }
}
