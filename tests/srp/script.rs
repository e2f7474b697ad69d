//! What the target of the tests does, and what it has seen.

use std::task::Waker;

use ulp_srp::iu::{
    DataBuffer, LoginRejectReason, LoginReq, LogoutReason, MemoryDescriptor, Status, ToTarget,
};
use verbs_core::{RKey, WcStatus};

use crate::target::{BLOCK, DISK, IU_LEN};

/// A data command as the target saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// 1 direct, 2 indirect, 3 immediate.
    pub(crate) format: u8,
    pub(crate) pieces: Vec<MemoryDescriptor>,
    pub(crate) total: u32,
    /// RDMA operations that moved the data.
    pub(crate) operations: u32,
}

/// What the target does wrong, or differently.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Request limit at login.
    pub(crate) limit: i32,
    /// Answers carry no credit; CRED_REQ grants it after that many of them.
    pub(crate) withhold: Option<u32>,
    /// Invalidates the key of direct commands itself.
    pub(crate) invalidates: bool,
    /// Invalidates a key that is not the command's.
    pub(crate) invalidates_wrong: bool,
    /// Invalidates the key of another command that it has.
    pub(crate) invalidates_other: bool,
    pub(crate) immediate: bool,
    /// Cuts answers to that many bytes.
    pub(crate) cut_to: Option<usize>,
    /// Answers twice.
    pub(crate) twice: bool,
    /// Answers with a tag that was never sent.
    pub(crate) wrong_tag: bool,
    /// Keeps data commands without an answer.
    pub(crate) holds: bool,
    /// Refuses logins.
    pub(crate) rejects: Option<LoginRejectReason>,
    /// Logs the initiator out at the next command.
    pub(crate) logs_out: Option<LogoutReason>,
    /// Ends the connection at the next command.
    pub(crate) hangs_up: bool,
    /// Sends an asynchronous event before the next answer.
    pub(crate) reports: bool,
    /// Credits that this event carries.
    pub(crate) reported_credit: i32,
    /// The disk's serial number; it has no other name.
    pub(crate) serial: &'static str,
    /// The number of blocks that the disk reports.
    pub(crate) blocks: u64,
    /// The disk accepts FUA. Otherwise a WRITE with FUA is refused, as by Linux' target.
    pub(crate) fua: bool,
    /// The status of data commands, and how often, before they are carried out.
    pub(crate) refuses: Option<(u32, Status)>,
    /// Accepts units of that many bytes.
    pub(crate) iu_len_max: u32,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            limit: 64,
            withhold: None,
            invalidates: false,
            invalidates_wrong: false,
            invalidates_other: false,
            immediate: true,
            cut_to: None,
            twice: false,
            wrong_tag: false,
            holds: false,
            rejects: None,
            logs_out: None,
            hangs_up: false,
            reports: false,
            reported_credit: 0,
            serial: "disk 1",
            blocks: DISK as u64 / u64::from(BLOCK),
            fua: true,
            refuses: None,
            iu_len_max: IU_LEN as u32,
        }
    }
}

/// The state that target and test share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) script: Script,
    pub(crate) seen: Vec<Seen>,
    /// Status of the RDMA READ of a probe.
    pub(crate) probed: Option<WcStatus>,
    /// The task that waits for it.
    pub(crate) probing: Option<Waker>,
    pub(crate) logins: Vec<LoginReq>,
    pub(crate) aborted: u32,
    pub(crate) resets: u32,
    pub(crate) executed: u64,
    /// Operation codes of commands that were carried out, and whether FUA was set.
    pub(crate) opcodes: Vec<(u8, bool)>,
    pub(crate) managed: u32,
    pub(crate) credit_answers: u32,
    pub(crate) event_answers: u32,
    pub(crate) logouts: u32,
    /// Commands that arrived without a credit, or took the one that is reserved for task management.
    pub(crate) overdrawn: u32,
    /// Credit that events carried.
    pub(crate) more_credit: i32,
    /// The most commands that the target had at a time.
    pub(crate) outstanding_max: i32,
    /// Wakes channels, to look at the script.
    pub(crate) wakers: Vec<Waker>,
}

/// The key of a command with one piece.
pub(crate) fn key_of(unit: &[u8]) -> Option<RKey> {
    match ToTarget::parse(unit) {
        Ok(ToTarget::Cmd(cmd)) => match cmd.data_in {
            DataBuffer::Direct(piece) => Some(piece.rkey),
            _ => None,
        },
        _ => None,
    }
}

/// The answers to INQUIRY, MODE SENSE(10), READ CAPACITY(16) and REPORT LUNS; `None` for pages that do not exist.
pub(crate) fn control(cdb: &[u8], script: &Script) -> Option<Vec<u8>> {
    Some(match (cdb[0], cdb[1] & 1, cdb[2]) {
        (0x12, 0, _) => {
            let mut answer = vec![0, 0, 6, 2, 31, 0, 0, 0];
            answer.extend(b"VERBS   TEST DISK       0.1 ");
            answer
        }
        (0x12, _, 0x80) => {
            let mut answer = vec![0, 0x80, 0, script.serial.len() as u8];
            answer.extend(script.serial.bytes());
            answer
        }
        (0x12, ..) => return None,
        (0x5a, ..) => vec![0, 6, 0, u8::from(script.fua) << 4, 0, 0, 0, 0],
        (0x9e, ..) => {
            let mut answer = vec![0; 32];
            answer[..8].copy_from_slice(&(script.blocks - 1).to_be_bytes());
            answer[8..12].copy_from_slice(&BLOCK.to_be_bytes());
            answer
        }
        _ => {
            let mut answer = vec![0; 16];
            answer[3] = 8;
            answer
        }
    })
}
