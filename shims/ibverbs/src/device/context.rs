//! An open device.

use std::ffi::c_int;
use std::fs::File;
use std::mem::offset_of;

use hca_sim::clock::Clock;
use verbs_abi::{self as abi, VerbsContext};
use verbs_core::{Device, PortAttr};

use super::Network;
use crate::call::live::{Kind, Object, Users, look};
use crate::call::{Errno, number};
use crate::inbox::event::{About, Events, Raised, acknowledge};

/// An open device: each has objects and events of its own, and all share the HCA.
#[repr(C)]
pub(crate) struct Context {
    shown: VerbsContext,
    pub(crate) device: Device,
    pub(crate) is_ethernet: bool,
    pub(crate) network: Network,
    /// The service level in completions of datagrams, as mlx5 reports it and UCX reads it.
    pub(crate) packet_type: Option<u8>,
    /// Programs duplicate the command descriptor, to pass the device to another process. No command is written to it.
    _cmd_fd: File,
    pub(crate) guid: u64,
    /// The most bytes that a work request carries inline.
    pub(crate) max_inline: u32,
    /// The clock that stamps its completions.
    pub(crate) clock: Clock,
    /// Asynchronous events.
    pub(crate) events: Events,
    users: Users,
}

/// The parts of a context.
pub(crate) struct Parts {
    pub(crate) shown: VerbsContext,
    pub(crate) device: Device,
    pub(crate) is_ethernet: bool,
    pub(crate) network: Network,
    pub(crate) packet_type: Option<u8>,
    pub(crate) cmd_fd: File,
    pub(crate) guid: u64,
    /// The most bytes that a work request carries inline.
    pub(crate) max_inline: u32,
    pub(crate) clock: Clock,
    pub(crate) events: Events,
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
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            shown: parts.shown,
            device: parts.device,
            is_ethernet: parts.is_ethernet,
            network: parts.network,
            packet_type: parts.packet_type,
            _cmd_fd: parts.cmd_fd,
            guid: parts.guid,
            max_inline: parts.max_inline,
            clock: parts.clock,
            events: parts.events,
            users: Users::default(),
        }
    }

    /// Returns the device when the context is no longer in use.
    pub(crate) fn into_device(self) -> Device {
        self.device
    }

    /// The attributes of the port.
    pub(crate) fn port_attr(&self, port: u8) -> Result<PortAttr, Errno> {
        Ok(self.device.query_port(port).wait()?)
    }
}

/// `ibv_get_async_event`.
pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    number(|| {
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let taken = |raised: &Raised| {
            if let About::Object(_, count) = &raised.subject {
                count.taken();
            }
        };
        let raised = context.events.inbox.take(taken)?;
        let element = match raised.subject {
            About::Device => 0,
            About::Port(port) => u64::from(port),
            About::Object(at, _) => at as u64,
        };
        let event_type = raised.event as u32;
        // SAFETY: the program passes the place for the result.
        unsafe {
            event.write(abi::AsyncEvent {
                element,
                event_type,
            });
        }
        Ok(0)
    })
}

/// `ibv_ack_async_event`.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut abi::AsyncEvent) {
    number(|| {
        // SAFETY: an event that get_async_event has filled, so its object waits for this call.
        let event = unsafe { event.as_ref() }.ok_or(Errno::INVAL)?;
        // Events of completion queues, queue pairs and shared queues; the others name a port or nothing.
        if matches!(event.event_type, 0..=7 | 14..=16) {
            acknowledge(event.element as usize);
        }
        Ok(0)
    });
}
