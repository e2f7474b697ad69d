//! Fuzz targets as plain functions over bytes; see [`crate::iu::fuzz`].

use super::{
    Capacity, Command, Inquiry, Sense, block_limits, parse_unmap, reported_luns, unmap_parameters,
};
use crate::iu::fuzz::print;

/// What an initiator sends: a CDB. What is accepted is built again to a CDB that means the same, and what is not
/// becomes sense data. Taken for the list of an UNMAP as well.
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

/// What a target sends: sense data. Taken for all else that describes a device as well.
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
