//! Opening a device: the table of functions that programs call through pointers.

use std::ffi::c_int;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use verbs_abi::{self as abi, ContextOps, VerbsContext};
use verbs_core::LinkLayer;
use verbs_core::mem::catch_faults;

use crate::call::live::{Ending, end, forget, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::device::{self, Context, PORT, Parts};
use crate::inbox::Inbox;
use crate::inbox::event::Events;
use crate::srq::xrcd;
use crate::{cq, memory, qp, srq};

/// `ibv_open_device`.
pub(crate) unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    pointer(|| {
        if !device::is_ours(device) {
            return Err(Errno::INVAL);
        }
        let made = device::hca()?;
        // A program may free memory that is registered, which hardware would keep. Where this is not possible, a
        // peer's access then ends the process.
        let _ = catch_faults();
        let inbox = Inbox::new()?;
        let cmd_fd = File::open("/dev/null").map_err(|_| Errno(libc::EMFILE))?;
        let open = made.opened()?;
        let max_inline = open.query().wait()?.max_inline_data;
        let is_ethernet = open.query_port(PORT).wait()?.link_layer == LinkLayer::Ethernet;
        let context = Context::new(Parts {
            shown: table(device, cmd_fd.as_raw_fd(), inbox.fd()),
            events: Events::of(&open, inbox),
            device: open,
            cmd_fd,
            is_ethernet,
            packet_type: is_ethernet.then(|| packet_type(made.hca.gid().into())),
            guid: device::guid_of(&made),
            max_inline,
            clock: made.clock,
            network: made.network,
        });
        Ok(publish(room(), context))
    })
}

/// `ibv_close_device`. Objects that the program has not destroyed stay, with the device below them, until the process
/// ends: the kernel would destroy them, and the program could no longer use them.
pub(crate) unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    code(|| {
        // SAFETY: the program no longer uses it.
        let closed = unsafe {
            end::<Context, _>(context, |context| {
                // Events that are being delivered keep it busy for a moment.
                let _ = context.into_device().close_when_idle().wait();
                Ending::Over
            })
        };
        match closed {
            Err(Errno::BUSY) => {
                // SAFETY: it was found just now.
                unsafe { look::<Context, _>(context) }?
                    .device
                    .ignore_events();
                forget(context);
                Ok(())
            }
            closed => closed,
        }
    })
}

/// How a datagram on Ethernet arrived, in place of its service level, as mlx5 reports it and UCX reads it: behind a UDP
/// header (8), which is behind one of IPv4 (2) or IPv6 (1).
fn packet_type(address: IpAddr) -> u8 {
    match address.to_canonical() {
        IpAddr::V4(_) => 8 | 2,
        IpAddr::V6(_) => 8 | 1,
    }
}

fn table(device: *mut abi::Device, cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        newer: [None; 6],
        query_port: Some(device::query_port_ex),
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
        query_rt_values: Some(device::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        private: null_mut(),
        query_device_ex: Some(device::query_device_ex),
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
                query_device: Some(device::query_device),
                query_port: Some(device::query_port),
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
