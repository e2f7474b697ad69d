//! Which queue pair numbers are leased, in the daemon's lock file: the next daemon reads it if this one is killed.
//!
//! An entry of 16 bytes for each block: the token of its client, or zeros if it is free. The first one, which no client has,
//! says what the file is. What is written is there as soon as the call returns, whatever becomes of the process; nothing is
//! to outlive the system.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use verbs_core::host::Block;
use verbs_core::host::message::Token;
use verbs_host::Record;

const MAGIC: Token = *b"verbs leases 2\0\0";
const FREE: Token = [0; 16];
const ENTRY: usize = FREE.len();

#[derive(Debug)]
pub(super) struct Leases(File);

impl Leases {
    /// Those of the file, which is made one if it is none.
    pub(super) fn open(file: &OwnedFd) -> io::Result<(Self, Vec<Record>)> {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let len = ENTRY * (usize::from(Block::LAST.number()) + 1);
        let mut entries = vec![FREE; len / ENTRY];
        let is_one =
            file.read_exact_at(entries.as_flattened_mut(), 0).is_ok() && entries[0] == MAGIC;
        if !is_one {
            file.set_len(0)?;
            file.set_len(len as u64)?;
            file.write_all_at(&MAGIC, 0)?;
            entries.fill(FREE);
        }
        let records = (0..).zip(entries).skip(1).filter_map(|(number, token)| {
            let block = Block::new(number)?;
            let token = Some(token).filter(|&token| token != FREE)?;
            let token = Some(token);
            Some(Record { block, token })
        });
        Ok((Self(file), records.collect()))
    }

    pub(super) fn write(&self, record: Record) -> io::Result<()> {
        let at = ENTRY * usize::from(record.block.number());
        self.0
            .write_all_at(&record.token.unwrap_or(FREE), at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was written is read by the next daemon; a file of something else is not taken for it.
    #[test]
    fn records_outlive_the_daemon() {
        let open = || OwnedFd::from(tempfile::tempfile().expect("a file"));
        let file = open();
        let (leases, records) = Leases::open(&file).expect("it is made one");
        assert_eq!(records, []);
        let record = |number, token| Record {
            block: Block::new(number).expect("there is one"),
            token,
        };
        let [first, last] = [record(1, Some([7; 16])), record(0x3ffe, Some([8; 16]))];
        for record in [first, record(5, Some([9; 16])), last, record(5, None)] {
            leases.write(record).expect("it is written");
        }
        drop(leases);
        let (_, records) = Leases::open(&file).expect("it is one");
        assert_eq!(records, [first, last]);
        let other = open();
        File::from(other.try_clone().expect("a descriptor"))
            .write_all_at(&[7; 300_000], 0)
            .expect("it is written");
        assert_eq!(Leases::open(&other).expect("it is made one").1, []);
        assert_eq!(Leases::open(&other).expect("it is one").1, []);
    }
}
