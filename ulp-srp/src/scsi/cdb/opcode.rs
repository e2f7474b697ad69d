//! Operation codes, and which bits of their CDBs are checked.

use crate::scsi::bytes::put;

/// An operation code, with its service action where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// The first byte of the CDB.
    pub code: u8,
    /// The service action, if it selects the command.
    pub action: Option<u16>,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $(/ $action:literal)?, [$($usage:literal),*];)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: u8 = $code;)*
        }

        /// The commands, with the meaningful bits of their CDBs (SPC-4, 6.35.3).
        const SUPPORTED: &[(Opcode, &[u8])] = &[
            $((Opcode { code: $code, action: opcodes!(@ $($action)?) }, &[$($usage),*]),)*
        ];
    };
    (@) => { None };
    (@ $action:literal) => { Some($action) };
}

opcodes! {
    /// TEST UNIT READY.
    TEST_UNIT_READY = 0x00, [0x00, 0, 0, 0, 0, 0];
    /// REQUEST SENSE.
    REQUEST_SENSE = 0x03, [0x03, 0x01, 0, 0, 0xff, 0];
    /// READ (6).
    READ_6 = 0x08, [0x08, 0x1f, 0xff, 0xff, 0xff, 0];
    /// WRITE (6).
    WRITE_6 = 0x0a, [0x0a, 0x1f, 0xff, 0xff, 0xff, 0];
    /// INQUIRY.
    INQUIRY = 0x12, [0x12, 0x01, 0xff, 0xff, 0xff, 0];
    /// MODE SENSE (6).
    MODE_SENSE_6 = 0x1a, [0x1a, 0x08, 0xff, 0xff, 0xff, 0];
    /// START STOP UNIT.
    START_STOP_UNIT = 0x1b, [0x1b, 0x01, 0, 0, 0xf3, 0];
    /// READ CAPACITY (10).
    READ_CAPACITY_10 = 0x25, [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// READ (10).
    READ_10 = 0x28, [0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
    /// WRITE (10).
    WRITE_10 = 0x2a, [0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
    /// VERIFY (10).
    VERIFY_10 = 0x2f, [0x2f, 0x10, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
    /// SYNCHRONIZE CACHE (10).
    SYNCHRONIZE_CACHE_10 = 0x35, [0x35, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
    /// WRITE SAME (10).
    WRITE_SAME_10 = 0x41, [0x41, 0x08, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
    /// UNMAP.
    UNMAP = 0x42, [0x42, 0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0];
    /// MODE SENSE (10).
    MODE_SENSE_10 = 0x5a, [0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0];
    /// READ (16).
    READ_16 = 0x88, [0x88, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// COMPARE AND WRITE.
    COMPARE_AND_WRITE = 0x89, [0x89, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0x1f, 0];
    /// WRITE (16).
    WRITE_16 = 0x8a, [0x8a, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// VERIFY (16).
    VERIFY_16 = 0x8f, [0x8f, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// SYNCHRONIZE CACHE (16).
    SYNCHRONIZE_CACHE_16 = 0x91, [0x91, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// WRITE SAME (16).
    WRITE_SAME_16 = 0x93, [0x93, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// SERVICE ACTION IN (16); only READ CAPACITY (16) is supported.
    SERVICE_ACTION_IN_16 = 0x9e / 0x10, [0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
    /// REPORT LUNS.
    REPORT_LUNS = 0xa0, [0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
    /// MAINTENANCE IN; only REPORT SUPPORTED OPERATION CODES is supported.
    MAINTENANCE_IN = 0xa3 / 0x0c, [0xa3, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
    /// READ (12).
    READ_12 = 0xa8, [0xa8, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
    /// WRITE (12).
    WRITE_12 = 0xaa, [0xaa, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
}

/// The service action of READ CAPACITY (16).
pub(super) const READ_CAPACITY_16: u8 = 0x10;

/// The service action of REPORT SUPPORTED OPERATION CODES.
pub(super) const REPORT_OPCODES: u8 = 0x0c;

/// Bytes of the CDB that begins with that byte; `None` for groups without a fixed length.
pub(super) const fn cdb_len(code: u8) -> Option<usize> {
    match code >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}

/// The data of REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35): of all commands, or of the one that `one` names.
/// `None` when the request does not fit the command: with a service action where it has none, or without one
/// where it has one. If `timeouts` is set, all timeouts are reported as unknown.
pub fn supported_opcodes(one: Option<Opcode>, timeouts: bool) -> Option<Vec<u8>> {
    match one {
        None => Some(all(timeouts)),
        Some(one) => single(one, timeouts),
    }
}

fn all(timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for (opcode, usage) in SUPPORTED {
        let mut entry = [0; 8];
        entry[0] = opcode.code;
        if let Some(action) = opcode.action {
            put(&mut entry, 2, &action.to_be_bytes());
            entry[5] |= 1;
        }
        entry[5] |= u8::from(timeouts) << 1;
        // 16 at most.
        entry[7] = usage.len() as u8;
        bytes.extend(entry);
        if timeouts {
            bytes.extend(NO_TIMEOUTS);
        }
    }
    let len = (bytes.len() - 4) as u32;
    put(&mut bytes, 0, &len.to_be_bytes());
    bytes
}

fn single(one: Opcode, timeouts: bool) -> Option<Vec<u8>> {
    const NOT_SUPPORTED: u8 = 1;
    const SUPPORTED_BY_THE_STANDARD: u8 = 3;
    let mut of_code = SUPPORTED
        .iter()
        .filter(|(opcode, _)| opcode.code == one.code);
    let Some((first, _)) = of_code.clone().next() else {
        return Some(vec![0, NOT_SUPPORTED, 0, 0]);
    };
    if first.action.is_some() != one.action.is_some() {
        return None;
    }
    let found = of_code.find(|(opcode, _)| opcode.action == one.action);
    Some(match found {
        None => vec![0, NOT_SUPPORTED, 0, 0],
        Some((_, usage)) => {
            let support = SUPPORTED_BY_THE_STANDARD | u8::from(timeouts) << 7;
            let mut bytes = vec![0, support, 0, usage.len() as u8];
            bytes.extend(*usage);
            if timeouts {
                bytes.extend(NO_TIMEOUTS);
            }
            bytes
        }
    })
}

/// The command timeouts descriptor, without values.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::{Command, CommandError};

    /// Goal: the table and the parser know the same commands. Method: the shortest valid CDB of each operation
    /// code.
    #[test]
    fn the_table_is_what_the_parser_takes() {
        for code in 0..=u8::MAX {
            let listed = SUPPORTED.iter().find(|(opcode, _)| opcode.code == code);
            let mut cdb = [0; 16];
            cdb[0] = code;
            if let Some((opcode, usage)) = listed {
                assert_eq!(Some(usage.len()), cdb_len(code), "{code:#x}");
                assert_eq!(usage[0], code);
                cdb[1] = opcode.action.unwrap_or(0) as u8;
            }
            let unknown = matches!(Command::parse(&cdb), Err(CommandError::Opcode(_)));
            assert_eq!(unknown, listed.is_none(), "{code:#x}");
        }
    }

    #[test]
    fn one_command_is_told_with_its_bits() {
        let asks = |code, action| supported_opcodes(Some(Opcode { code, action }), false);
        let unmap = asks(Opcode::UNMAP, None).expect("it has no service action");
        assert_eq!(
            unmap,
            [0, 3, 0, 10, 0x42, 0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0]
        );
        assert_eq!(asks(0xff, None), Some(vec![0, 1, 0, 0]));
        assert_eq!(asks(Opcode::UNMAP, Some(1)), None);
        assert_eq!(asks(Opcode::MAINTENANCE_IN, None), None);
        assert_eq!(
            asks(Opcode::MAINTENANCE_IN, Some(5)),
            Some(vec![0, 1, 0, 0])
        );
        let all = supported_opcodes(None, false).expect("all are listed");
        assert_eq!(all.len(), 4 + 8 * SUPPORTED.len());
        let all = supported_opcodes(None, true).expect("all are listed");
        assert_eq!(all.len(), 4 + 20 * SUPPORTED.len());
    }
}
