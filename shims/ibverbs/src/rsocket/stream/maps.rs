//! Memory of one side that the other writes by offset.

use std::ffi::{c_int, c_void};

use super::Stream;
use crate::call::{Errno, caught, number, set_errno};
use crate::rsocket::data::slice;
use crate::rsocket::memory::Region;
use crate::rsocket::socket::{self, Inner, Socket};
use crate::rsocket::wait::Progress;

/// `riomap`: memory that the peer may write by `riowrite`. The peer is informed of it before the next data.
pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    let mapped = caught(|| {
        if at.is_null() || protection & !libc::PROT_WRITE != 0 || u32::try_from(len).is_err() {
            return Err(Errno::INVAL);
        }
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let pd = inner.pd()?;
        let maps = inner.open()?.peer_maps();
        let index =
            (0..maps).find(|index| inner.regions.iter().all(|region| region.index != *index));
        let index = index.ok_or(Errno::NOMEM)?;
        let offset = if offset == -1 {
            at.addr() as i64
        } else {
            offset
        };
        // SAFETY: the program's memory, until it unmaps it.
        inner
            .regions
            .push(unsafe { Region::new(pd, at, len, index, offset.cast_unsigned()) }?);
        Ok(offset)
    });
    mapped.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// `riounmap`.
pub(crate) unsafe extern "C" fn riounmap(fd: c_int, at: *mut c_void, len: usize) -> c_int {
    number(|| {
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let place = inner
            .regions
            .iter()
            .position(|region| (region.at, region.len) == (at.addr(), len));
        inner.regions.swap_remove(place.ok_or(Errno::INVAL)?);
        Ok(0)
    })
}

/// `riowrite`: writes into the peer's memory; the peer is not informed.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    data: *const c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    let written = caught(|| {
        // SAFETY: the program passes valid arguments.
        let data = unsafe { slice(data, count) }?;
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        publish_regions(&socket, &mut inner, waits)?;
        let mut done = 0;
        while done < data.len() {
            inner.advance();
            let stream = inner.open()?;
            if !stream.writable {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno(libc::ECONNRESET))
                };
            }
            let at = offset.cast_unsigned() + done as u64;
            let Some(to) = stream.map_of(at) else {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::INVAL)
                };
            };
            let written = stream.write_at(&data[done..], to)?;
            done += written;
            if written == 0 {
                let may = |inner: &mut Inner| {
                    inner
                        .open()
                        .map_or(true, |stream| stream.may_send() || !stream.writable)
                };
                match socket.inner.wait(&mut inner, waits, may) {
                    Err(_) if done > 0 => return Ok(done),
                    waited => waited?,
                }
            }
        }
        Ok(done)
    });
    written.unwrap_or_else(|errno| {
        set_errno(errno);
        usize::MAX
    })
}

/// Informs the peer of memory that was mapped for it.
pub(in crate::rsocket) fn publish_regions(
    socket: &Socket,
    inner: &mut parking_lot::MutexGuard<'_, Inner>,
    waits: bool,
) -> Result<(), Errno> {
    while let Some(place) = inner.regions.iter().position(|region| !region.is_published) {
        let region = &inner.regions[place];
        let (index, offset, piece) = (region.index, region.offset, region.piece());
        if inner.open()?.publish_map(index, offset, piece)? {
            inner.regions[place].is_published = true;
            continue;
        }
        let may = |inner: &mut Inner| {
            inner
                .open()
                .map_or(true, |stream| stream.may_send() || !stream.writable)
        };
        socket.inner.wait(inner, waits, may)?;
        if !inner
            .open()
            .is_ok_and(|stream: &mut Stream| stream.writable)
        {
            return Err(Errno(libc::ECONNRESET));
        }
    }
    Ok(())
}
