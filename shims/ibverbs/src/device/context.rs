//! An open device.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use hca_sim::clock::Clock;
use parking_lot::Mutex;
use verbs_core::{Device, LinkLayer, ObjectId, PortAttr};

use super::{Made, PORT, gid, hca, is_ours, query};
use crate::abi::{self, ContextOps, VerbsContext};
use crate::call::{Errno, code, pointer};
use crate::event::Raised;
use crate::inbox::Inbox;
use crate::live::{Kind, Object, Users, look, publish, room};
use crate::{cq, memory, qp, srq, xrcd};

/// An open device: each has objects and events of its own, and all share the HCA.
#[repr(C)]
pub(crate) struct Context {
    shown: VerbsContext,
    pub(crate) device: Device,
    pub(crate) is_ethernet: bool,
    /// What completions of datagrams say as service level: see [`packet_type`].
    pub(crate) packet_type: Option<u8>,
    /// Programs duplicate the command descriptor, to hand the device to another process. No command goes there.
    _cmd_fd: File,
    pub(crate) guid: u64,
    /// What stamps its completions.
    pub(crate) clock: Clock,
    /// Asynchronous events.
    pub(crate) events: Arc<Inbox<Raised>>,
    /// The objects that events are about, by their numbers.
    pub(crate) subjects: Arc<Mutex<HashMap<ObjectId, usize>>>,
    users: Users,
}

// SAFETY: programs read the C structure, and change none of it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

// SAFETY: at that offset.
unsafe impl Object for Context {
    const KIND: Kind = Kind::Context;
    const OFFSET: usize = offset_of!(VerbsContext, context);

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Context {
    /// What the port says.
    pub(crate) fn port_attr(&self, port: u8) -> Result<PortAttr, Errno> {
        Ok(self.device.query_port(port).wait()?)
    }
}

/// `ibv_open_device`.
pub(crate) unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    pointer(|| {
        if !is_ours(device) {
            return Err(Errno::INVAL);
        }
        let Made { hca, clock } = hca()?;
        let events = Arc::new(Inbox::new()?);
        let subjects = Arc::default();
        let cmd_fd = File::open("/dev/null").map_err(|_| Errno(libc::EMFILE))?;
        let open = hca.open().wait()?;
        let is_ethernet = open.query_port(PORT).wait()?.link_layer == LinkLayer::Ethernet;
        crate::event::listen(&open, &events, &subjects);
        let context = Context {
            shown: shown(device, cmd_fd.as_raw_fd(), events.fd()),
            _cmd_fd: cmd_fd,
            is_ethernet,
            packet_type: is_ethernet.then(|| packet_type(hca.gid().into())),
            device: open,
            guid: gid::guid_of(&hca),
            clock,
            events,
            subjects,
            users: Users::default(),
        };
        Ok(publish(room(), context))
    })
}

/// `ibv_close_device`. What the program has not destroyed stays, with the device below it, until the process ends:
/// the kernel would destroy it, and the program could not use it any more.
pub(crate) unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    code(|| {
        // SAFETY: the program no longer uses it.
        let closed = unsafe {
            crate::live::end::<Context, _>(context, |Context { device, .. }| {
                // Events that are being told keep it busy for a moment.
                let _ = device.close_when_idle().wait();
                Ok(())
            })
        };
        match closed {
            Err(Errno::BUSY) => {
                // SAFETY: it was found just now.
                unsafe { look::<Context, _>(context) }?
                    .device
                    .ignore_events();
                crate::live::forget(context);
                Ok(())
            }
            closed => closed,
        }
    })
}

/// How a datagram on Ethernet came, in the place of its service level, as mlx5 has it and UCX reads it: behind a UDP
/// header (8), which is behind one of IPv4 (2) or IPv6 (1).
fn packet_type(address: IpAddr) -> u8 {
    match address.to_canonical() {
        IpAddr::V4(_) => 8 | 2,
        IpAddr::V6(_) => 8 | 1,
    }
}

fn shown(device: *mut abi::Device, cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        newer: [None; 6],
        query_port: Some(query::query_port_ex),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: None,
        counters: [None; 4],
        reg_dm_mr: Some(memory::reg_dm_mr),
        alloc_dm: Some(memory::alloc_dm),
        free_dm: Some(memory::free_dm),
        flow_actions: [None; 3],
        modify_qp_rate_limit: None,
        alloc_parent_domain: Some(memory::alloc_parent_domain),
        dealloc_td: Some(memory::dealloc_td),
        alloc_td: Some(memory::alloc_td),
        modify_cq: Some(cq::modify_cq),
        queues: [None; 6],
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        private: null_mut(),
        query_device_ex: Some(query::query_device_ex),
        flows: [None; 4],
        open_qp: Some(qp::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        placeholder: 0,
        sz: size_of::<VerbsContext>(),
        context: abi::Context {
            device,
            ops: ContextOps {
                query_device: Some(query::query_device),
                query_port: Some(query::query_port),
                alloc_mw: Some(memory::alloc_mw),
                bind_mw: Some(qp::bind_mw),
                dealloc_mw: Some(memory::dealloc_mw),
                poll_cq: Some(cq::poll_cq),
                req_notify_cq: Some(cq::req_notify_cq),
                post_srq_recv: Some(srq::post_srq_recv),
                post_send: Some(qp::post_send),
                post_recv: Some(qp::post_recv),
                ..ContextOps::default()
            },
            cmd_fd,
            async_fd,
            num_comp_vectors: 1,
            mutex: [0; 5],
            abi_compat: std::ptr::without_provenance_mut(usize::MAX),
        },
    }
}
