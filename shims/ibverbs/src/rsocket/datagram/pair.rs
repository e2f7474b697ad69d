//! The queue pair of a socket for datagrams, with its buffers.

use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

use verbs_abi::rdmacm::CmId;
use verbs_abi::{AhAttr, QpInitAttr, RecvWr, SendWr, Ud, Wc, opcode};
use verbs_cm::UDP_QKEY;

use super::wire::{SOURCE_MAX, emit_source, parse_source};
use crate::call::Errno;
use crate::qp::ah::{create_ah, destroy_ah};
use crate::rdmacm;
use crate::rsocket::memory::Buffer;
use crate::rsocket::options::{Options, Sizes};
use crate::rsocket::queue::Queue;

/// Bytes of a datagram with its header, in librdmacm.
pub(super) const SLOT: usize = 2048;
/// A header of the network comes before a datagram that arrives.
const GRH: usize = 40;
const ARRIVES: usize = GRH + SLOT;

/// `RDMA_PS_UDP`, and `IBV_QPT_UD`.
const SPACE: u32 = 0x111;
const UD: u32 = 4;
/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;

/// The kind of a completion, in the upper half of its number.
const RECEIVED: u64 = 1 << 63;

/// An id with a queue pair for datagrams. Fields are dropped in this order.
pub(super) struct Pair {
    queue: Queue,
    send: Buffer,
    receive: Buffer,
    /// Places of the send buffer that are not under way.
    free: Vec<u32>,
    places: usize,
    inline: usize,
    /// The longest datagram, with its header.
    longest: usize,
    local: SocketAddr,
    _id: Id,
}

struct Id(*mut CmId);

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the socket's own, which no longer uses it.
        unsafe { rdmacm::destroy_id(self.0) };
    }
}

/// A datagram that has arrived, in its place of the receive buffer.
pub(super) struct Place {
    index: u32,
    /// Its data are between these two.
    at: usize,
    end: usize,
    pub(super) from: SocketAddr,
}

/// Another socket's queue pair.
pub(super) struct Remote {
    ah: *mut verbs_abi::Ah,
    pub(super) qpn: u32,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // SAFETY: made for it; datagrams that are under way have its contents.
        unsafe { destroy_ah(self.ah) };
    }
}

impl Pair {
    /// A queue pair at that address of the device, whose number of UDP is this socket's.
    pub(super) fn new(local: SocketAddr, options: &Options) -> Result<Self, Errno> {
        let mut raw = null_mut();
        // SAFETY: the place is for the result; the address is complete; the id is this socket's.
        let id = unsafe {
            if rdmacm::create_id(null_mut(), &raw mut raw, null_mut(), SPACE) != 0 {
                return Err(Errno::last());
            }
            let id = Id(raw);
            let mut shares: i32 = options.reuse_address.into();
            rdmacm::set_option(raw, 0, 1, (&raw mut shares).cast(), 4);
            let mut addr = rdmacm::address::sockaddr::to_c(local).0;
            if rdmacm::bind_addr(raw, (&raw mut addr).cast()) != 0 {
                return Err(Errno::last());
            }
            id
        };
        let longest = rdmacm::datagram_max()?.min(SLOT);
        // SAFETY: plain numbers and pointers.
        let mut init: QpInitAttr = unsafe { zeroed() };
        let (sends, receives) = places(&options.sizes);
        init.cap = verbs_abi::QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: options.sizes.inline,
        };
        (init.qp_type, init.sq_sig_all) = (UD, 1);
        let queue = Queue::new(raw, &mut init)?;
        let pair = Self {
            send: Buffer::new(queue.pd(), sends as usize * SLOT)?,
            receive: Buffer::new(queue.pd(), receives as usize * ARRIVES)?,
            queue,
            free: (0..sends).collect(),
            places: sends as usize,
            inline: init.cap.max_inline_data as usize,
            longest,
            local,
            _id: id,
        };
        (0..receives).try_for_each(|index| pair.post(index))?;
        Ok(pair)
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: it exists as long as this.
        unsafe { (*self.queue.pair()).qp_num }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// A way to that queue pair of another socket.
    pub(super) fn remote(&self, addr: SocketAddr, qpn: u32) -> Result<Remote, Errno> {
        let attr: AhAttr = rdmacm::datagram_way(self.local.ip(), addr.ip())?;
        // SAFETY: the domain exists as long as this.
        let ah = unsafe { create_ah(self.queue.pd(), &raw const attr) };
        if ah.is_null() {
            return Err(Errno::last());
        }
        Ok(Remote { ah, qpn })
    }

    pub(super) fn may_send(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn all_sent(&self) -> bool {
        self.free.len() == self.places
    }

    /// Sends a datagram; `EAGAIN` if as many as there are places are under way.
    pub(super) fn send(&mut self, data: &[u8], to: &Remote) -> Result<(), Errno> {
        let mut header = [0; SOURCE_MAX];
        let header = {
            let length = emit_source(self.local, &mut header);
            &header[..length]
        };
        let length = header.len() + data.len();
        if length > self.longest {
            return Err(Errno(libc::EMSGSIZE));
        }
        let index = self.free.pop().ok_or(Errno(libc::EAGAIN))?;
        let at = index as usize * SLOT;
        self.send.write(at, header);
        self.send.write(at + header.len(), data);
        let list = [self.send.part(at, length)];
        // SAFETY: plain numbers and pointers.
        let mut wr: SendWr = unsafe { zeroed() };
        (wr.wr_id, wr.opcode) = (index.into(), opcode::SEND);
        (wr.sg_list, wr.num_sge) = (list.as_ptr(), 1);
        wr.send_flags = if length <= self.inline { INLINE } else { 0 };
        wr.wr.ud = Ud {
            ah: to.ah,
            remote_qpn: to.qpn,
            remote_qkey: UDP_QKEY.0,
        };
        // SAFETY: its place is not used again until its completion.
        let sent = unsafe { self.queue.send(&mut wr) };
        if sent.is_err() {
            self.free.push(index);
        }
        sent
    }

    /// Takes completions; `arrived` gets each datagram.
    pub(super) fn advance(&mut self, mut arrived: impl FnMut(Place)) {
        // SAFETY: plain numbers.
        let mut wcs: [Wc; 16] = unsafe { zeroed() };
        loop {
            let taken = self.queue.poll(&mut wcs);
            if taken.is_empty() {
                break;
            }
            for wc in taken {
                if wc.wr_id & RECEIVED == 0 {
                    self.free.push(wc.wr_id as u32);
                } else if wc.status == 0 {
                    let index = wc.wr_id as u32;
                    match self.place(index, wc.byte_len as usize) {
                        Some(place) => arrived(place),
                        // Of another protocol.
                        None => self.again(index),
                    }
                }
            }
        }
    }

    fn place(&self, index: u32, length: usize) -> Option<Place> {
        let first = index as usize * ARRIVES + GRH;
        let end = first + length.checked_sub(GRH)?;
        let mut header = [0; SOURCE_MAX];
        let known = SOURCE_MAX.min(end - first);
        self.receive.get(first, &mut header[..known]);
        let (from, length) = parse_source(&header[..known])?;
        Some(Place {
            index,
            at: first + length,
            end,
            from,
        })
    }

    /// Copies the beginning of a datagram. Returns how many bytes.
    pub(super) fn read(&self, place: &Place, into: &mut [u8]) -> usize {
        let length = into.len().min(place.end - place.at);
        self.receive.get(place.at, &mut into[..length]);
        length
    }

    /// Its place is free for another one.
    pub(super) fn give_back(&self, Place { index, .. }: Place) {
        self.again(index);
    }

    fn again(&self, index: u32) {
        // A queue pair that has failed takes none.
        let _ = self.post(index);
    }

    fn post(&self, index: u32) -> Result<(), Errno> {
        let list = [self.receive.part(index as usize * ARRIVES, ARRIVES)];
        let wr = RecvWr {
            wr_id: RECEIVED | u64::from(index),
            next: null(),
            sg_list: list.as_ptr(),
            num_sge: 1,
        };
        // SAFETY: its place is read only after its completion.
        unsafe { self.queue.receive(&wr) }
    }
}

/// Datagrams that may be under way, and those that may wait to be read: as many as the buffers have room for.
fn places(sizes: &Sizes) -> (u32, u32) {
    let fits = |count: u16, bytes: usize| u32::from(count).min((bytes / SLOT).max(1) as u32);
    (
        fits(sizes.sends, sizes.send_buffer),
        fits(sizes.receives, sizes.receive_buffer),
    )
}
