//! Fuzz targets as plain functions over bytes; see [`crate::iu::fuzz`].

use super::{
    Capacity, Command, Inquiry, Sense, block_limits, parse_unmap, reported_luns, unmap_parameters,
};
use crate::iu::fuzz::print;

/// Input from an initiator: a CDB. If it is accepted, it is built again to a CDB with the same meaning; otherwise
/// it becomes sense data. The bytes are read as the list of an UNMAP as well.
pub fn cdb(bytes: &[u8]) -> bool {
    unmap(bytes);
    match Command::parse(bytes) {
        Ok(command) => {
            print(&command);
            assert_eq!(Command::parse(&command.emit()), Ok(command));
            print(&command.transfer(512));
            true
        }
        Err(error) => {
            print(&error);
            same_again(Sense::from(error));
            false
        }
    }
}

/// Input from a target: sense data. The bytes are read as everything else that describes a device as well.
pub fn sense(bytes: &[u8]) -> bool {
    print(&Inquiry::parse(bytes));
    print(&(Capacity::parse10(bytes), Capacity::parse16(bytes)));
    print(&block_limits(bytes));
    assert!(reported_luns(bytes).count() <= bytes.len() / 8);
    let Some(sense) = Sense::parse(bytes) else {
        return false;
    };
    print(&sense);
    assert!(!sense.to_string().is_empty());
    same_again(sense);
    true
}

fn unmap(list: &[u8]) {
    match parse_unmap(list) {
        Ok(extents) => {
            assert!(extents.len() <= list.len() / 16);
            let again = unmap_parameters(&extents).expect("a list says no more than a list can");
            assert_eq!(parse_unmap(&again), Ok(extents));
        }
        Err(sense) => same_again(sense),
    }
}

fn same_again(sense: Sense) {
    assert_eq!(Sense::parse(&sense.emit_descriptors()), Some(sense));
    let fixed = Sense::parse(&sense.emit_fixed());
    assert_eq!(
        fixed.map(|fixed| (fixed.key, fixed.code, fixed.field)),
        Some((sense.key, sense.code, sense.field))
    );
}
