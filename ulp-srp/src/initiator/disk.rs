//! A disk that outlives outages: its commands wait, and are sent again.

use futures::lock::Mutex;
use std::time::Duration;
use verbs_core::sync::Arc;
use verbs_core::{Extent, Memory};

use crate::initiator::channel::{Command, Data};
use crate::initiator::error::{Completion, Error};
use crate::initiator::scsi::ScsiError;
use crate::initiator::session::Session;
use crate::iu::{Cdb, Lun, Residual, Status, TaskAttribute};
use crate::scsi::{
    self, BlockLimits, Blocks, Capacity, Extent as Range, Form, Sense, SenseKey, UnitNames,
};

/// Bytes that one command moves at most, unless the disk states a smaller limit.
const COMMAND_BYTES_MAX: u32 = 1 << 20;

/// Blocks of one WRITE SAME at most, and the default if the disk states no limit.
const SAME_BLOCKS: u64 = 1 << 16;
const SAME_BLOCKS_MAX: u64 = 1 << 22;

/// How often a command is repeated that the disk refused, or answered with a unit attention, and the pauses in
/// between: about 10 s in all.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The pause before the next check of a disk that is not ready although its target is back.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Bytes of the answers to queries.
const ANSWER: u32 = 512;

/// A logical unit of a session, as a disk for programs: offsets and lengths are in bytes, and multiples of its
/// block size. Clones are the same disk.
///
/// Requests that are in flight when the session is lost, and those issued before it is restored, wait and are
/// sent again: each names its blocks, so executing it twice has the same effect as executing it once. The
/// target's login answer promises that it has dropped the first one before it reads the second. A request fails
/// when the session is [over](Session::over), within
/// [`Options::reconnect_timeout`](crate::initiator::Options::reconnect_timeout).
///
/// Before any request is sent to a disk that is back, its names and its capacity are queried. If it is another
/// disk, or has become smaller, the session ends with [`Error::OtherDisk`], and all requests fail.
///
/// Written data is on the medium after [`Disk::flush`], or after a write with `fua`: by the FUA bit where the
/// disk supports it (DPOFUA), otherwise by SYNCHRONIZE CACHE after the WRITE.
///
/// ```no_run
/// use ulp_srp::initiator::{Disk, Session};
/// use ulp_srp::iu::Lun;
/// use verbs_core::Memory;
/// use verbs_core::sync::Arc;
///
/// # async fn example(session: &Session) -> Result<(), ulp_srp::initiator::ScsiError> {
/// let disk = Disk::open(session, Lun(0)).await?;
/// let page = Arc::new(Memory::alloc(4096)?);
/// page.write(0, b"first page")?;
/// disk.write(0, &page, true).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Context
/// Nothing blocks; every future may be awaited in routines.
#[derive(Clone, Debug)]
pub struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    lun: Lun,
    about: About,
    limits: BlockLimits,
    fua: bool,
    read_only: bool,
    /// A block of zeros, for writing to many places.
    zeros: Arc<Memory>,
    /// The login in which the disk was last verified to be the same one.
    seen: Mutex<u64>,
}

/// What identifies a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    names: UnitNames,
    capacity: Capacity,
}

impl Disk {
    /// Opens the logical unit with that number.
    ///
    /// # Errors
    /// [`ScsiError`]; [`ScsiError::BlockSize`] if the block size is not a power of two from 512 to 4096.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(session: &Session, lun: Lun) -> Result<Self, ScsiError> {
        let asking = Asking {
            session,
            lun,
            login: session.opened().await?,
        };
        let about = asking.about().await?;
        let size = about.capacity.block_bytes;
        if !size.is_power_of_two() || !(512..=4096).contains(&size) {
            return Err(ScsiError::BlockSize(size));
        }
        let limits = asking.page(0xb0).await?;
        let limits = limits.as_deref().and_then(scsi::block_limits);
        let (fua, read_only) = asking.modes().await?;
        Ok(Self {
            inner: Arc::new(Inner {
                session: session.clone(),
                lun,
                about,
                limits: limits.unwrap_or_default(),
                fua,
                read_only,
                zeros: Arc::new(Memory::alloc(4096)?),
                seen: Mutex::new(asking.login),
            }),
        })
    }

    /// Its capacity when it was opened.
    pub fn capacity(&self) -> Capacity {
        self.inner.about.capacity
    }

    /// The limits of one command.
    pub fn limits(&self) -> BlockLimits {
        self.inner.limits
    }

    /// The names that identify it.
    pub fn names(&self) -> &UnitNames {
        &self.inner.about.names
    }

    /// Whether it is write-protected.
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// Whether single writes can be forced to the medium (DPOFUA). Otherwise [`Disk::write`] and [`Disk::zero`]
    /// flush.
    pub fn has_fua(&self) -> bool {
        self.inner.fua
    }

    /// Whether it can release the space of blocks.
    pub fn can_trim(&self) -> bool {
        self.inner.limits.unmap > 0
    }

    /// Fills the memory with the data at that offset.
    ///
    /// # Errors
    /// [`ScsiError::Status`] if the disk does not execute it; [`ScsiError::Transport`] when the session is over.
    ///
    /// # Cancel safety
    /// When the future is dropped, a command may still run, and the memory stays shared until it has ended.
    pub async fn read(&self, at: u64, memory: &Arc<Memory>) -> Result<(), ScsiError> {
        self.transfer(at, memory, false, false).await
    }

    /// Writes the memory to that offset; with `fua`, the data survives a power failure.
    ///
    /// # Errors
    /// As [`Disk::read`].
    ///
    /// # Cancel safety
    /// As [`Disk::read`].
    pub async fn write(&self, at: u64, memory: &Arc<Memory>, fua: bool) -> Result<(), ScsiError> {
        self.transfer(at, memory, true, fua && self.inner.fua)
            .await?;
        match fua && !self.inner.fua {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Writes zeros there; with `unmap`, by releasing the space where possible; `fua` as for [`Disk::write`].
    ///
    /// # Errors
    /// As [`Disk::read`].
    ///
    /// # Cancel safety
    /// As [`Disk::read`].
    pub async fn zero(&self, at: u64, len: u64, unmap: bool, fua: bool) -> Result<(), ScsiError> {
        let size = self.capacity().block_bytes;
        let max = match self.inner.limits.write_same {
            0 => SAME_BLOCKS,
            said => said.min(SAME_BLOCKS_MAX),
        };
        let part = max * u64::from(size);
        let list = [Extent {
            memory: &self.inner.zeros,
            offset: 0,
            len: size,
        }];
        let unmap = unmap && self.can_trim();
        let mut done = 0;
        while done < len {
            let some = part.min(len - done);
            let blocks = self.blocks(at + done, some);
            let command = scsi::Command::WriteSame { blocks, unmap };
            self.command(&command, Data::Out(&list)).await?;
            done += some;
        }
        match fua {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Declares that this data is not needed. Does nothing if the disk cannot release space.
    ///
    /// # Errors
    /// As [`Disk::read`].
    ///
    /// # Cancel safety
    /// As [`Disk::read`].
    pub async fn trim(&self, at: u64, len: u64) -> Result<(), ScsiError> {
        let size = u64::from(self.capacity().block_bytes);
        let (mut lba, mut left) = (at / size, len / size);
        while left > 0 {
            // Fits: it is at most that number of 32 bits.
            let count = left.min(self.inner.limits.unmap.into()) as u32;
            if count == 0 {
                return Ok(());
            }
            let Some(list) = scsi::unmap_parameters(&[Range { lba, count }]) else {
                return Ok(());
            };
            let memory = Arc::new(Memory::alloc(list.len())?);
            memory.write(0, &list)?;
            // 24 bytes.
            let length = list.len() as u16;
            let extent = [whole(&memory)];
            let command = scsi::Command::Unmap { length };
            self.command(&command, Data::Out(&extent)).await?;
            (lba, left) = (lba + u64::from(count), left - u64::from(count));
        }
        Ok(())
    }

    /// Flushes everything written before this call to the medium.
    ///
    /// # Errors
    /// As [`Disk::read`].
    ///
    /// # Cancel safety
    /// As [`Disk::read`].
    pub async fn flush(&self) -> Result<(), ScsiError> {
        let command = scsi::Command::SynchronizeCache {
            blocks: Blocks::new(0, 0),
            immediate: false,
        };
        self.command(&command, Data::None).await
    }

    /// Transfers all of the memory, in parts.
    async fn transfer(
        &self,
        at: u64,
        memory: &Arc<Memory>,
        is_write: bool,
        fua: bool,
    ) -> Result<(), ScsiError> {
        let part = self.command_bytes() as usize;
        for offset in (0..memory.len()).step_by(part) {
            let len = part.min(memory.len() - offset) as u32;
            let list = [Extent {
                memory,
                offset,
                len,
            }];
            let mut blocks = self.blocks(at + offset as u64, len.into());
            blocks.fua = fua;
            let (command, data) = match is_write {
                true => (scsi::Command::Write(blocks), Data::Out(&list[..])),
                false => (scsi::Command::Read(blocks), Data::In(&list[..])),
            };
            self.command(&command, data).await?;
        }
        Ok(())
    }

    /// Bytes that one command moves at most.
    fn command_bytes(&self) -> u32 {
        let size = self.capacity().block_bytes;
        match self.inner.limits.transfer.saturating_mul(size) {
            0 => COMMAND_BYTES_MAX,
            said => said.min(COMMAND_BYTES_MAX),
        }
    }

    fn blocks(&self, at: u64, len: u64) -> Blocks {
        let size = u64::from(self.capacity().block_bytes);
        // The callers have cut it into parts that fit into a command.
        let count = u32::try_from(len / size).unwrap_or(u32::MAX);
        Blocks {
            form: Form::Sixteen,
            ..Blocks::new(at / size, count)
        }
    }

    /// Sends a command until it is executed, over as many logins as that takes.
    async fn command(&self, command: &scsi::Command, data: Data<'_>) -> Result<(), ScsiError> {
        let Inner { session, lun, .. } = &*self.inner;
        loop {
            let login = self.ready().await?;
            let asking = Asking {
                session,
                lun: *lun,
                login,
            };
            match asking.run(command, data).await {
                Err(error) if is_outage(&error) => {}
                done => return done.map(drop),
            }
        }
    }

    /// Waits until the disk is there, in a login in which it was verified to be the same one.
    async fn ready(&self) -> Result<u64, ScsiError> {
        let Inner { session, lun, .. } = &*self.inner;
        loop {
            let login = session.opened().await?;
            let mut seen = self.inner.seen.lock().await;
            if *seen == login {
                return Ok(login);
            }
            let asking = Asking {
                session,
                lun: *lun,
                login,
            };
            match asking.about().await {
                Ok(now) => {
                    self.compare(&now)?;
                    *seen = login;
                    return Ok(login);
                }
                Err(error) if is_outage(&error) => {}
                // The target is back, but its disk is not yet.
                Err(ScsiError::Status(_) | ScsiError::Short { .. }) => {
                    drop(seen);
                    session.pause(LOOK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the session if that is another disk.
    fn compare(&self, now: &About) -> Result<(), ScsiError> {
        let was = &self.inner.about;
        let is_same = now.names == was.names
            && now.capacity.block_bytes == was.capacity.block_bytes
            && now.capacity.blocks >= was.capacity.blocks;
        if is_same {
            return Ok(());
        }
        let say = |about: &About| {
            let Capacity {
                blocks,
                block_bytes,
                ..
            } = about.capacity;
            format!("{}, {blocks} blocks of {block_bytes} bytes", about.names)
        };
        let error = Error::OtherDisk {
            was: say(was),
            now: say(now),
        };
        self.inner.session.end(&error);
        Err(error.into())
    }
}

/// Commands on the channels of one login.
struct Asking<'a> {
    session: &'a Session,
    lun: Lun,
    login: u64,
}

impl Asking<'_> {
    /// Sends a command until the disk accepts it.
    async fn run(&self, command: &scsi::Command, data: Data<'_>) -> Result<Completion, ScsiError> {
        let cdb = command.emit();
        let command = Command {
            cdb: Cdb::new(&cdb).map_err(Error::Unit)?,
            lun: self.lun,
            attribute: TaskAttribute::SIMPLE,
            data,
        };
        let (mut attempts, mut pause) = (1, PAUSE);
        loop {
            let (is_news, refused) = match self.session.run_on(self.login, &command).await {
                Ok(done) if done.is_good() => return Ok(done),
                Ok(done) => {
                    let sense = done.sense.as_deref().and_then(Sense::parse);
                    let is_news = sense.is_some_and(|it| it.key == SenseKey::UnitAttention);
                    // Another initiator's reset has aborted it.
                    let is_full = [Status::BUSY, Status::TASK_SET_FULL, Status::TASK_ABORTED]
                        .contains(&done.status);
                    if !is_news && !is_full {
                        return Err(ScsiError::Status(Box::new(done)));
                    }
                    (is_news, ScsiError::Status(Box::new(done)))
                }
                Err(error @ (Error::Busy | Error::Aborted(_))) => (false, error.into()),
                Err(error) => return Err(error.into()),
            };
            if attempts == ATTEMPTS {
                return Err(refused);
            }
            attempts += 1;
            if !is_news {
                self.session.pause(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }

    /// The answer to a query.
    async fn ask(&self, command: &scsi::Command) -> Result<Vec<u8>, ScsiError> {
        let memory = Arc::new(Memory::alloc(ANSWER as usize)?);
        // A session whose handles are all in use, or that has none, can query all the same.
        if self.session.needs_publishing() {
            self.session.publish(&memory).await?;
        }
        let done = self.run(command, Data::In(&[whole(&memory)])).await;
        self.session.unpublish(&memory);
        let unused = match done?.data_in {
            Residual::Under(count) => count.min(ANSWER),
            Residual::None | Residual::Over(_) => 0,
        };
        let mut answer = vec![0; (ANSWER - unused) as usize];
        memory.read(0, &mut answer)?;
        Ok(answer)
    }

    /// A page of vital product data; `None` if the disk has no such page.
    async fn page(&self, page: u8) -> Result<Option<Vec<u8>>, ScsiError> {
        let command = scsi::Command::Inquiry {
            page: Some(page),
            allocation: ANSWER as u16,
        };
        match self.ask(&command).await {
            Ok(page) => Ok(Some(page)),
            Err(ScsiError::Status(done)) if is_illegal(&done) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Queries what identifies the disk.
    async fn about(&self) -> Result<About, ScsiError> {
        let command = scsi::Command::ReadCapacity16 { allocation: 32 };
        let answer = self.ask(&command).await?;
        let capacity = Capacity::parse16(&answer).ok_or(ScsiError::Short {
            got: answer.len(),
            needed: Capacity::LONG_LEN,
        })?;
        let (serial, identification) = (self.page(0x80).await?, self.page(0x83).await?);
        let names = UnitNames::parse(serial.as_deref(), identification.as_deref());
        Ok(About {
            names: names.unwrap_or_default(),
            capacity,
        })
    }

    /// Whether it supports FUA, and whether it is write-protected; neither if it does not say.
    async fn modes(&self) -> Result<(bool, bool), ScsiError> {
        let command = scsi::Command::ModeSense {
            page: 0x3f,
            subpage: 0,
            control: 0,
            no_descriptors: true,
            long: true,
            allocation: ANSWER as u16,
        };
        match self.ask(&command).await {
            Ok(answer) => {
                let specific = answer.get(3).copied().unwrap_or(0);
                Ok((specific & 0x10 != 0, specific & 0x80 != 0))
            }
            Err(ScsiError::Status(done)) if is_illegal(&done) => Ok((false, false)),
            Err(error) => Err(error),
        }
    }
}

/// Whether the session is lost, so commands in flight must be sent again.
fn is_outage(error: &ScsiError) -> bool {
    matches!(
        error,
        ScsiError::Transport(
            Error::Reconnecting
                | Error::ConnectionLost
                | Error::Ended(_)
                | Error::Protocol(_)
                | Error::Post(_)
                | Error::Work(_)
        )
    )
}

/// Whether the disk does not know the command.
fn is_illegal(done: &Completion) -> bool {
    matches!(done.sense_code(), Some((5, ..)))
}

fn whole(memory: &Arc<Memory>) -> Extent<'_> {
    Extent {
        memory,
        offset: 0,
        len: u32::try_from(memory.len()).unwrap_or(u32::MAX),
    }
}
