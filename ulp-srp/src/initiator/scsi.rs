//! The few SCSI commands that a user of a disk needs (SPC-4, SBC-3), as calls of a session.

use verbs_core::sync::Arc;
use verbs_core::{Extent, Memory};

use crate::initiator::channel::{Command, Data};
use crate::initiator::error::{Completion, Error, Outcome};
use crate::initiator::session::Session;
use crate::iu::{Cdb, Lun, Residual, TaskAttribute};

/// The description that a logical unit gives of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Kind of device; 0 is a disk, 0x1f an unusable device.
    pub device_type: u8,
    /// Its vendor.
    pub vendor: String,
    /// Its product name.
    pub product: String,
    /// Its revision.
    pub revision: String,
}

/// The size of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_len: u32,
}

impl Capacity {
    /// Bytes of the unit.
    pub const fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_len as u64)
    }
}

/// Why a logical unit did not execute a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScsiError {
    /// The command did not reach it, or its answer did not reach this initiator.
    #[error(transparent)]
    Transport(#[from] Error),
    /// It answered with another status than GOOD.
    #[error("{}", describe(.0))]
    Status(Box<Completion>),
    /// Its answer is shorter than the required part.
    #[error("the logical unit answered {got} bytes of {needed}")]
    Short {
        /// Bytes received.
        got: usize,
        /// Bytes required.
        needed: usize,
    },
    /// Its block size is not one that a disk for programs may have.
    #[error("the disk has blocks of {0} bytes; a power of two from 512 to 4096 can be used")]
    BlockSize(u32),
}

fn describe(completion: &Completion) -> String {
    match completion.sense_code() {
        Some((key, code, qualifier)) => format!(
            "{}: sense key {key:#x}, additional sense {code:#04x}/{qualifier:#04x}",
            completion.status
        ),
        None => completion.status.to_string(),
    }
}

impl From<verbs_core::Error> for ScsiError {
    fn from(error: verbs_core::Error) -> Self {
        Self::Transport(error.into())
    }
}

impl From<ScsiError> for Error {
    fn from(error: ScsiError) -> Self {
        match error {
            ScsiError::Transport(error) => error,
            ScsiError::Status(_) | ScsiError::Short { .. } | ScsiError::BlockSize(_) => {
                Self::Response(crate::iu::ResponseCode::FAILED)
            }
        }
    }
}

/// READ(16) or WRITE(16).
pub fn transfer_cdb(is_write: bool, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = if is_write { 0x8a } else { 0x88 };
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

impl Session {
    /// Reads blocks into a scatter list.
    ///
    /// # Errors
    /// [`ScsiError::Transport`], [`ScsiError::Status`].
    pub async fn read(
        &self,
        lun: Lun,
        lba: u64,
        blocks: u32,
        list: &[Extent<'_>],
    ) -> Result<(), ScsiError> {
        let cdb = transfer_cdb(false, lba, blocks);
        self.plain(lun, &cdb, Data::In(list)).await.map(drop)
    }

    /// Writes blocks from a scatter list.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn write(
        &self,
        lun: Lun,
        lba: u64,
        blocks: u32,
        list: &[Extent<'_>],
    ) -> Result<(), ScsiError> {
        let cdb = transfer_cdb(true, lba, blocks);
        self.plain(lun, &cdb, Data::Out(list)).await.map(drop)
    }

    /// Flushes everything written so far to the medium: SYNCHRONIZE CACHE(10).
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn synchronize(&self, lun: Lun) -> Result<(), ScsiError> {
        let cdb = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        self.plain(lun, &cdb, Data::None).await.map(drop)
    }

    /// TEST UNIT READY.
    ///
    /// # Errors
    /// As [`Session::read`]; a unit that has something to report first does so by a status.
    pub async fn test_unit_ready(&self, lun: Lun) -> Result<(), ScsiError> {
        self.plain(lun, &[0; 6], Data::None).await.map(drop)
    }

    /// Queries the description of the logical unit: INQUIRY.
    ///
    /// # Errors
    /// As [`Session::read`]; [`ScsiError::Short`].
    pub async fn inquiry(&self, lun: Lun) -> Result<Inquiry, ScsiError> {
        let answer = self.ask(lun, &[0x12, 0, 0, 0, 96, 0], 96, 36).await?;
        let text = |range: std::ops::Range<usize>| {
            let text = String::from_utf8_lossy(&answer[range]);
            text.trim_matches([' ', '\0']).to_owned()
        };
        Ok(Inquiry {
            device_type: answer[0] & 0x1f,
            vendor: text(8..16),
            product: text(16..32),
            revision: text(32..36),
        })
    }

    /// The size of the logical unit: READ CAPACITY(16), or (10) if the unit does not support that.
    ///
    /// # Errors
    /// As [`Session::inquiry`].
    pub async fn capacity(&self, lun: Lun) -> Result<Capacity, ScsiError> {
        let mut long = [0; 16];
        (long[0], long[1], long[13]) = (0x9e, 0x10, 32);
        match self.ask(lun, &long, 32, 12).await {
            Ok(answer) => {
                let last = answer
                    .first_chunk()
                    .map_or(0, |last| u64::from_be_bytes(*last));
                Ok(Capacity {
                    blocks: last.saturating_add(1),
                    block_len: word(&answer, 8),
                })
            }
            // Illegal request: an old disk.
            Err(ScsiError::Status(done)) if matches!(done.sense_code(), Some((5, ..))) => {
                let short = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let answer = self.ask(lun, &short, 8, 8).await?;
                Ok(Capacity {
                    blocks: u64::from(word(&answer, 0)) + 1,
                    block_len: word(&answer, 4),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The logical units behind the port: REPORT LUNS.
    ///
    /// # Errors
    /// As [`Session::inquiry`].
    pub async fn luns(&self) -> Result<Vec<Lun>, ScsiError> {
        const ROOM: u32 = 4096;
        let mut cdb = [0; 12];
        cdb[0] = 0xa0;
        cdb[6..10].copy_from_slice(&ROOM.to_be_bytes());
        let answer = self.ask(Lun(0), &cdb, ROOM, 8).await?;
        let len = (word(&answer, 0) as usize).min(answer.len() - 8);
        let lun = |bytes: &[u8]| bytes.first_chunk().map(|lun| Lun(u64::from_be_bytes(*lun)));
        Ok(answer[8..8 + len].chunks_exact(8).filter_map(lun).collect())
    }

    /// Sends a command with data of at most about a page; returns the data received.
    async fn ask(
        &self,
        lun: Lun,
        cdb: &[u8],
        room: u32,
        needed: usize,
    ) -> Result<Vec<u8>, ScsiError> {
        let memory = Arc::new(Memory::alloc(room as usize)?);
        let list = [Extent {
            memory: &memory,
            offset: 0,
            len: room,
        }];
        // A session whose handles are all in use, or that has none, can query all the same.
        if self.needs_publishing() {
            self.publish(&memory).await?;
        }
        let done = self.plain(lun, cdb, Data::In(&list)).await;
        self.unpublish(&memory);
        let unused = match done?.data_in {
            Residual::Under(count) => count.min(room),
            Residual::None | Residual::Over(_) => 0,
        };
        let mut answer = vec![0; (room - unused) as usize];
        memory.read(0, &mut answer)?;
        match answer.len() >= needed {
            true => Ok(answer),
            false => Err(ScsiError::Short {
                got: answer.len(),
                needed,
            }),
        }
    }

    /// Sends a command that must end with GOOD. A condition that the unit reports once (for example a reset) is
    /// skipped.
    async fn plain(&self, lun: Lun, cdb: &[u8], data: Data<'_>) -> Result<Completion, ScsiError> {
        const ATTEMPTS: u32 = 3;
        let command = Command {
            cdb: Cdb::new(cdb).map_err(Error::Unit)?,
            lun,
            attribute: TaskAttribute::SIMPLE,
            data,
        };
        let mut done: Outcome = self.run(&command).await;
        for _ in 1..ATTEMPTS {
            match &done {
                Ok(answer) if matches!(answer.sense_code(), Some((6, ..))) => {
                    done = self.run(&command).await;
                }
                _ => break,
            }
        }
        match done? {
            done if done.is_good() => Ok(done),
            done => Err(ScsiError::Status(Box::new(done))),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_be_bytes(*word))
}
