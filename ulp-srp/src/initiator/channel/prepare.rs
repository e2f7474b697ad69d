//! Describes a command's memory to the target, and writes its unit.

use std::ops::Range;

use verbs_core::sync::Arc;
use verbs_core::{Access, Extent, FastMr, RKey, Remote};

use super::release;
use super::{Channel, Command, Core, Data, Formats, Handle, Phase, Piece};
use crate::initiator::config::Mechanism;
use crate::initiator::error::Error;
use crate::initiator::plan::runs;
use crate::initiator::table::SlotId;
use crate::iu::{Cmd, DataBuffer, Descriptors, Indirect, MemoryDescriptor};

/// Bytes before the descriptors of an indirect buffer: the command and the table's own descriptor.
pub(super) const TABLE_AT: usize = 48 + 20;

/// A command whose handles are being allocated: everything that is needed when they exist.
pub(super) struct Asked {
    cdb: Vec<u8>,
    attribute: crate::iu::TaskAttribute,
    is_out: bool,
    list: Vec<Piece>,
    runs: Vec<Range<usize>>,
    got: Vec<FastMr>,
    error: Option<Error>,
}

/// How the memory of a command is described.
enum Named {
    Nothing,
    /// By descriptors, which form a table in the channel's scratch memory.
    Pieces(usize),
    /// The data are inside the unit: this many bytes.
    Immediate(u32),
    /// Requests for handles are in flight.
    Later,
}

/// Begins a command: takes a slot, describes the memory, and makes the command ready if nothing needs to
/// complete first. A refused command leaves nothing behind.
pub(super) fn begin(
    core: &mut Core,
    channel: &Arc<Channel>,
    command: &Command<'_>,
) -> Result<SlotId, Error> {
    match core.phase {
        Phase::Open => {}
        Phase::Opening | Phase::Lost => return Err(Error::Reconnecting),
    }
    let list = match command.data {
        Data::None => &[],
        Data::In(list) | Data::Out(list) => list,
    };
    let total: u64 = list.iter().map(|extent| u64::from(extent.len)).sum();
    let total = u32::try_from(total).map_err(|_| Error::TooLong(total))?;
    let id = core.table.take().ok_or(Error::Busy)?;
    let slot = core.slot(id);
    (slot.lun, slot.registered, slot.outcome) = (command.lun, 0, None);
    slot.access = match command.data {
        Data::Out(_) => Access::REMOTE_READ,
        Data::In(_) | Data::None => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    };
    let named = name(core, channel, id, command, list, total);
    let written = named.and_then(|named| write(core, id, command, &named, total));
    match written {
        Ok(true) => {
            core.table.ready(id);
        }
        Ok(false) => {}
        Err(error) => {
            release::give_back(core, id);
            core.table.claim(id);
            core.table.release(id);
            return Err(error);
        }
    }
    Ok(id)
}

fn name(
    core: &mut Core,
    channel: &Arc<Channel>,
    id: SlotId,
    command: &Command<'_>,
    list: &[Extent<'_>],
    total: u32,
) -> Result<Named, Error> {
    if total == 0 {
        return Ok(Named::Nothing);
    }
    let is_out = matches!(command.data, Data::Out(_));
    if is_out && takes_immediate(core, channel, command, total) {
        return Ok(Named::Immediate(total));
    }
    let options = &channel.options;
    let by_handles = match options.mechanism {
        Mechanism::Published => return by_published(core, channel, list),
        Mechanism::FastReg => by_fast_reg(core, id, list, options.pages_max),
        Mechanism::Fmr => by_fmr(core, id, list, options.pages_max),
        Mechanism::Request => return by_request(core, channel, id, command, list),
    };
    match by_handles {
        Ok(count) => Ok(Named::Pieces(count)),
        Err(error) => {
            release::give_back(core, id);
            match options.fall_back && error == Error::Busy {
                true => by_published(core, channel, list),
                false => Err(error),
            }
        }
    }
}

fn takes_immediate(core: &Core, channel: &Channel, command: &Command<'_>, total: u32) -> bool {
    let offset = usize::from(Cmd::IMMEDIATE_OFFSET);
    core.immediate
        && total <= channel.options.immediate_max
        && command.cdb.additional().len() <= 16
        && offset + total as usize <= core.iu_len_max
}

/// Descriptors of handles of the pool, for as many runs.
fn by_fast_reg(
    core: &mut Core,
    id: SlotId,
    list: &[Extent<'_>],
    pages_max: u32,
) -> Result<usize, Error> {
    let slot = &mut core.slots[usize::from(id.index)];
    let mut count = 0;
    for run in runs(list, pages_max) {
        if slot.handles.len() == slot.handles.capacity() {
            return Err(Error::Busy);
        }
        let (mr, descriptor) = mapped(&mut core.hands.fast, &list[run])?;
        slot.handles.push(Handle::Fast {
            mr,
            is_valid: false,
        });
        put(&mut core.scratch, count, descriptor?)?;
        count += 1;
    }
    Ok(count)
}

/// Descriptors of mappings of the pool of fast memory regions.
fn by_fmr(
    core: &mut Core,
    id: SlotId,
    list: &[Extent<'_>],
    pages_max: u32,
) -> Result<usize, Error> {
    let slot = &mut core.slots[usize::from(id.index)];
    let pool = core.hands.fmr.as_mut().ok_or(Error::Busy)?;
    let mut count = 0;
    for run in runs(list, pages_max) {
        if slot.handles.len() == slot.handles.capacity() {
            return Err(Error::Busy);
        }
        let fmr = match pool.map(list[run].iter().copied()) {
            Ok(fmr) => fmr,
            // No key is free, or the list is longer than one maps.
            Err(
                verbs_core::Error::Exhausted { .. }
                | verbs_core::Error::Mismatch { .. }
                | verbs_core::Error::Busy,
            ) => {
                return Err(Error::Busy);
            }
            Err(error) => return Err(error.into()),
        };
        let descriptor = MemoryDescriptor {
            addr: fmr.addr,
            rkey: fmr.rkey,
            len: u32::try_from(fmr.len).unwrap_or(u32::MAX),
        };
        slot.handles.push(Handle::Fmr(fmr));
        put(&mut core.scratch, count, descriptor)?;
        count += 1;
    }
    Ok(count)
}

/// Descriptors by the long-lived keys of published memory: as few as the memory's layout allows.
fn by_published(core: &mut Core, channel: &Channel, list: &[Extent<'_>]) -> Result<Named, Error> {
    let Some(shared) = channel.shared.upgrade() else {
        return Err(Error::LoggedOut);
    };
    let mut count: usize = 0;
    let mut last: Option<MemoryDescriptor> = None;
    for extent in list.iter().filter(|extent| extent.len > 0) {
        let remote = shared.published(extent).ok_or(Error::Busy)?;
        if let Some(before) = &mut last
            && before.rkey == remote.rkey
            && before.addr.wrapping_add(before.len.into()) == remote.addr
        {
            before.len += extent.len;
            put(&mut core.scratch, count - 1, *before)?;
            continue;
        }
        let piece = MemoryDescriptor {
            addr: remote.addr,
            rkey: remote.rkey,
            len: extent.len,
        };
        put(&mut core.scratch, count, piece)?;
        (last, count) = (Some(piece), count + 1);
    }
    core.formats.published += 1;
    Ok(Named::Pieces(count))
}

/// Requests handles for this command alone; the routine of the last request continues the command.
fn by_request(
    core: &mut Core,
    channel: &Arc<Channel>,
    id: SlotId,
    command: &Command<'_>,
    list: &[Extent<'_>],
) -> Result<Named, Error> {
    let Some(shared) = channel.shared.upgrade() else {
        return Err(Error::LoggedOut);
    };
    let options = &channel.options;
    let runs: Vec<_> = runs(list, options.pages_max).collect();
    if runs.len() > usize::from(options.runs_max) {
        return match options.fall_back {
            true => by_published(core, channel, list),
            false => Err(Error::Busy),
        };
    }
    let mut cdb = command.cdb.bytes().to_vec();
    cdb.extend_from_slice(command.cdb.additional());
    let piece = |extent: &Extent<'_>| Piece {
        memory: Arc::clone(extent.memory),
        offset: extent.offset,
        len: extent.len,
    };
    let slot = core.slot(id);
    slot.pending = runs.len();
    slot.asked = Some(Box::new(Asked {
        cdb,
        attribute: command.attribute,
        is_out: matches!(command.data, Data::Out(_)),
        list: list.iter().map(piece).collect(),
        got: Vec::with_capacity(runs.len()),
        runs: runs.clone(),
        error: None,
    }));
    for _run in runs {
        let channel = Arc::clone(channel);
        let request = shared.pd().alloc_mr(options.pages_max);
        // Under NoBlock: the routine is queued if the request completes at once.
        let _ = request.issue(move |made| {
            channel.with(|core| {
                allocated(core, &channel, id, made);
                core.send_ready(&channel);
            });
        });
    }
    Ok(Named::Later)
}

/// One of the command's own handles was allocated, or could not be.
fn allocated(
    core: &mut Core,
    channel: &Arc<Channel>,
    id: SlotId,
    made: Result<FastMr, verbs_core::Error>,
) {
    let slot = core.slot(id);
    slot.pending -= 1;
    let is_last = slot.pending == 0;
    let Some(asked) = &mut slot.asked else { return };
    match made {
        Ok(mr) => asked.got.push(mr),
        Err(error) => asked.error = Some(error.into()),
    }
    if !is_last {
        return;
    }
    let Some(mut asked) = slot.asked.take() else {
        return;
    };
    let named = name_own(core, id, &mut asked);
    let is_decided = core.table.state(id) != crate::initiator::table::State::Preparing;
    let written = match (is_decided, named) {
        // It was aborted before, or the channel was lost.
        (true, _) => return release::let_go(core, channel, id, None),
        (false, Err(error)) => Err(error),
        (false, Ok(named)) => write_asked(core, id, &asked, &named),
    };
    match written {
        Ok(_) => {
            core.table.ready(id);
        }
        Err(error) => core.claim(channel, id, error),
    }
}

fn name_own(core: &mut Core, id: SlotId, asked: &mut Asked) -> Result<Named, Error> {
    let slot = &mut core.slots[usize::from(id.index)];
    slot.handles.extend(asked.got.drain(..).map(Handle::Own));
    if let Some(error) = asked.error.take() {
        return Err(error);
    }
    let list: Vec<_> = asked.list.iter().map(Piece::extent).collect();
    for (count, (handle, run)) in slot.handles.iter_mut().zip(&asked.runs).enumerate() {
        if let Handle::Own(mr) = handle {
            put(&mut core.scratch, count, map(mr, &list[run.clone()])?)?;
        }
    }
    Ok(Named::Pieces(asked.runs.len()))
}

fn write_asked(core: &mut Core, id: SlotId, asked: &Asked, named: &Named) -> Result<bool, Error> {
    let list: Vec<_> = asked.list.iter().map(Piece::extent).collect();
    let total = asked.list.iter().map(|piece| piece.len).sum();
    let command = Command {
        cdb: crate::iu::Cdb::new(&asked.cdb)?,
        lun: core.slot(id).lun,
        attribute: asked.attribute,
        data: match asked.is_out {
            true => Data::Out(&list),
            false => Data::In(&list),
        },
    };
    write(core, id, &command, named, total)
}

/// Writes the unit to the slot's space. `false`: not yet.
fn write(
    core: &mut Core,
    id: SlotId,
    command: &Command<'_>,
    named: &Named,
    total: u32,
) -> Result<bool, Error> {
    let tag = core.table.tag(id);
    let Some(wires) = &core.wires else {
        return Err(Error::Reconnecting);
    };
    let place = usize::from(id.index) * wires.stride;
    let (table, unit) = core.scratch.split_at_mut(wires.stride);
    let buffer = match *named {
        Named::Later => return Ok(false),
        Named::Nothing => DataBuffer::None,
        Named::Immediate(len) => DataBuffer::Immediate(len),
        Named::Pieces(count) => {
            // The table is in the unit itself, and the target may read the unit's memory.
            let at = TABLE_AT + command.cdb.additional().len();
            let remote = wires.send.remote(place + at);
            pieces(&table[..count * MemoryDescriptor::LEN], remote, total)
        }
    };
    let (list, data_out, data_in) = match command.data {
        Data::Out(list) => (list, buffer, DataBuffer::None),
        Data::In(list) => (list, DataBuffer::None, buffer),
        Data::None => ([].as_slice(), DataBuffer::None, DataBuffer::None),
    };
    let cmd = Cmd {
        tag,
        lun: command.lun,
        attribute: command.attribute,
        cdb: command.cdb,
        data_out,
        data_in,
        ..Cmd::default()
    };
    let len = match *named {
        Named::Immediate(bytes) => usize::from(Cmd::IMMEDIATE_OFFSET) + bytes as usize,
        _ => cmd.emitted_len(),
    };
    let max = core.iu_len_max.min(wires.stride);
    if len > max {
        return Err(Error::UnitTooLong { got: len, max });
    }
    let unit = &mut unit[..len];
    let head = cmd.emit(unit)?;
    if matches!(named, Named::Immediate(_)) {
        fill(unit, head, list)?;
    }
    wires.send.write(place, unit)?;
    core.formats.count(&buffer);
    core.slots[usize::from(id.index)].iu_len = len;
    Ok(true)
}

impl Formats {
    fn count(&mut self, buffer: &DataBuffer<'_>) {
        match buffer {
            DataBuffer::None => self.none += 1,
            DataBuffer::Direct(_) => self.direct += 1,
            DataBuffer::Immediate(_) => self.immediate += 1,
            DataBuffer::Indirect(indirect) => {
                self.indirect += 1;
                self.entries += indirect.partial.len() as u64;
            }
        }
    }
}

/// The buffer of a finished table; `remote` is where the target finds it in the unit.
fn pieces(table: &[u8], remote: Remote, total: u32) -> DataBuffer<'_> {
    // The caller cuts it after a whole descriptor.
    let partial = Descriptors::of_table(table).unwrap_or(Descriptors::new(&[]));
    let mut each = partial.iter();
    match (each.next(), each.next()) {
        (Some(piece), None) => DataBuffer::Direct(piece),
        _ => DataBuffer::Indirect(Indirect {
            table: MemoryDescriptor {
                addr: remote.addr,
                rkey: remote.rkey,
                len: u32::try_from(table.len()).unwrap_or(u32::MAX),
            },
            total_len: total,
            partial,
        }),
    }
}

/// Fills the rest of a unit with immediate data.
fn fill(unit: &mut [u8], head: usize, list: &[Extent<'_>]) -> Result<(), Error> {
    let mut at = usize::from(Cmd::IMMEDIATE_OFFSET);
    unit[head..at].fill(0);
    for extent in list {
        let end = at + extent.len as usize;
        extent.memory.read(extent.offset, &mut unit[at..end])?;
        at = end;
    }
    Ok(())
}

/// Maps a run with a handle of the pool, and takes the handle out of the pool. Skips a handle while a thread of
/// the device still reads its earlier memory: another one may be free.
///
/// # Errors
/// [`Error::Busy`] if no handle is free.
fn mapped(
    pool: &mut Vec<FastMr>,
    run: &[Extent<'_>],
) -> Result<(FastMr, Result<MemoryDescriptor, Error>), Error> {
    for at in (0..pool.len()).rev() {
        match map(&mut pool[at], run) {
            Err(Error::Verb(verbs_core::Error::Busy)) => {}
            descriptor => return Ok((pool.swap_remove(at), descriptor)),
        }
    }
    Err(Error::Busy)
}

/// Maps a run; returns its descriptor, with the handle's next key.
fn map(mr: &mut FastMr, run: &[Extent<'_>]) -> Result<MemoryDescriptor, Error> {
    let taken = mr.map(run.iter().copied())?;
    if taken != run.len() {
        // A single element has more pages than a handle maps.
        return Err(Error::Busy);
    }
    let rkey: RKey = mr.next_key();
    Ok(MemoryDescriptor {
        addr: mr.remote(0).addr,
        rkey,
        len: u32::try_from(mr.len()).unwrap_or(u32::MAX),
    })
}

/// Puts a descriptor into the table under construction.
fn put(scratch: &mut [u8], at: usize, piece: MemoryDescriptor) -> Result<(), Error> {
    let table = scratch.len() / 2;
    let place = at * MemoryDescriptor::LEN;
    if place + MemoryDescriptor::LEN > table - TABLE_AT {
        return Err(Error::UnitTooLong {
            got: TABLE_AT + place + MemoryDescriptor::LEN,
            max: table,
        });
    }
    Descriptors::new(&[piece]).emit(&mut scratch[place..]);
    Ok(())
}
