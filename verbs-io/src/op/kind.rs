//! What each kind of operation asks the device for.

use verbs_core::{Access, PostError, Remote, SendOp, SendQueue, Sge};

use crate::error::{Error, Operation};
use crate::lane::request::{Kind, What, work_request};
use crate::lane::slot::NONE;
use crate::region::{Token, Word};

/// A kind, or why it cannot be asked for.
pub(crate) type Checked<K> = Result<K, Box<Error>>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Send;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write(Remote);
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteWithImm(Remote, u32);
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read(Remote);
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompareSwap {
    remote: Remote,
    compare: u64,
    swap: u64,
}
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchAdd {
    remote: Remote,
    add: u64,
}

impl Write {
    #[inline(always)]
    pub(crate) fn to(token: Token, len: usize) -> Checked<Self> {
        match token.place(len, Access::REMOTE_WRITE) {
            Ok(remote) => Ok(Self(remote)),
            Err(error) => Err(Box::new(error)),
        }
    }
}

impl WriteWithImm {
    pub(crate) fn to(token: Token, len: usize, imm: u32) -> Checked<Self> {
        Write::to(token, len).map(|Write(remote)| Self(remote, imm))
    }
}

impl Read {
    #[inline(always)]
    pub(crate) fn from(token: Token, len: usize) -> Checked<Self> {
        match token.place(len, Access::REMOTE_READ) {
            Ok(remote) => Ok(Self(remote)),
            Err(error) => Err(Box::new(error)),
        }
    }
}

impl CompareSwap {
    pub(crate) fn of(word: Word, compare: u64, swap: u64) -> Checked<Self> {
        let remote = word.place()?;
        Ok(Self {
            remote,
            compare,
            swap,
        })
    }
}

impl FetchAdd {
    pub(crate) fn of(word: Word, add: u64) -> Checked<Self> {
        let remote = word.place()?;
        Ok(Self { remote, add })
    }
}

macro_rules! kinds {
    ($($Kind:ident |$kind:ident| $op:expr, $operation:ident;)*) => { $(
        impl Kind for $Kind {
            #[inline(always)]
            fn post(&self, queue: &mut SendQueue, id: u64, sge: Sge) -> Result<(), PostError> {
                let $kind = self;
                queue.post(work_request(id, $op, sge))
            }

            #[inline(always)]
            fn what(&self, memory: Option<(Sge, u32)>) -> What {
                let $kind = self;
                let (sge, buf) = match memory {
                    Some((sge, buf)) => (Some(sge), buf),
                    None => (None, NONE),
                };
                What { op: $op, operation: Operation::$operation, sge, buf }
            }
        }
    )* };
}

kinds! {
    Send |_send| SendOp::Send, Send;
    Write |write| SendOp::Write(write.0), Write;
    WriteWithImm |write| SendOp::WriteWithImm(write.0, write.1), Write;
    Read |read| SendOp::Read(read.0), Read;
    CompareSwap |it| SendOp::CompareSwap { remote: it.remote, compare: it.compare, swap: it.swap }, CompareSwap;
    FetchAdd |it| SendOp::FetchAdd { remote: it.remote, add: it.add }, FetchAdd;
}
