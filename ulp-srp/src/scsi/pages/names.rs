//! The identity of a disk, from its pages of vital product data (SPC-4, 7.8.6 and 7.8.15).

use std::fmt;

use crate::scsi::bytes::u16_at;

const SERIAL: u8 = 0x80;
const IDENTIFICATION: u8 = 0x83;

/// The names of a logical unit: two units with the same names are the same disk.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UnitNames {
    /// Its serial number, without surrounding spaces; empty if it has none.
    pub serial: String,
    /// Its designators, whole, in the order of their bytes, except those of ports and targets.
    pub designators: Vec<Vec<u8>>,
}

impl UnitNames {
    /// Reads the two pages; either may be missing. `None` if one of them is another page, or incomplete.
    pub fn parse(serial: Option<&[u8]>, identification: Option<&[u8]>) -> Option<Self> {
        let mut names = Self::default();
        if let Some(page) = serial {
            let text = String::from_utf8_lossy(content(page, SERIAL)?);
            text.trim_matches([' ', '\0']).clone_into(&mut names.serial);
        }
        if let Some(page) = identification {
            names.designators = designators(content(page, IDENTIFICATION)?)?;
            names.designators.sort_unstable();
        }
        Some(names)
    }
}

/// The serial number, or else the first designator.
impl fmt::Display for UnitNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.serial[..], self.designators.first()) {
            ("", None) => f.write_str("without a name"),
            ("", Some(designator)) => {
                let name = designator.get(4..).unwrap_or_default();
                name.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            (serial, _) => f.write_str(serial),
        }
    }
}

/// The content after the header of a page.
fn content(page: &[u8], code: u8) -> Option<&[u8]> {
    (*page.get(1)? == code).then_some(())?;
    let len = usize::from(u16_at(page.get(..4)?, 2));
    page.get(4..4 + len)
}

/// The designators of the logical unit itself.
fn designators(mut list: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while let Some(&len) = list.get(3) {
        let (designator, rest) = list.split_at_checked(4 + usize::from(len))?;
        // Association: bits 4 and 5; 0 is the unit.
        if designator[1] & 0x30 == 0 {
            found.push(designator.to_vec());
        }
        list = rest;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::{BlockLimits, Identity, vpd};

    fn names(identity: &Identity) -> UnitNames {
        let page = |code| vpd(code, identity, &BlockLimits::default());
        let pages = [page(SERIAL), page(IDENTIFICATION)];
        let [serial, identification] = pages.each_ref().map(Option::as_deref);
        UnitNames::parse(serial, identification).expect("two pages")
    }

    #[test]
    fn disks_are_told_apart_by_what_they_say() {
        let first = names(&Identity::new("one"));
        assert_eq!((first.serial.as_str(), first.designators.len()), ("one", 2));
        assert_eq!(first, names(&Identity::new("one")));
        assert_ne!(first, names(&Identity::new("other")));
        assert_eq!(first.to_string(), "one");
        let unnamed = UnitNames::parse(None, None).expect("no page");
        assert_eq!(unnamed.to_string(), "without a name");
    }

    #[test]
    fn names_of_ports_are_no_names_of_the_disk() {
        // As Linux reports it: an NAA of the unit, and the port's number and group.
        let page = [
            &[0, 0x83, 0, 28][..],
            &[1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7],
            &[0x61, 0x94, 0, 4, 0, 0, 0, 1],
            &[0x61, 0x95, 0, 4, 0, 0, 0, 9],
        ]
        .concat();
        let names = UnitNames::parse(None, Some(&page)).expect("a page");
        assert_eq!(names.designators.len(), 1);
        assert_eq!(names.to_string(), "6001020304050607");
        for cut in 0..page.len() {
            assert_eq!(UnitNames::parse(None, Some(&page[..cut])), None, "{cut}");
        }
        let mut odd = page;
        odd[7] = 200;
        assert_eq!(UnitNames::parse(None, Some(&odd)), None, "it ends before");
        assert_eq!(UnitNames::parse(Some(&odd), None), None, "another page");
    }
}
