//! Limits of arguments.

use verbs_core::{Attr, Capability, DeviceCap, Error};

use crate::shared::Shared;

/// The argument's value is out of range, if it is.
pub(super) fn at_most(attr: Attr, got: u32, max: u32) -> Result<(), Error> {
    match got <= max {
        true => Ok(()),
        false => Err(Error::Invalid { attr, got, max }),
    }
}

/// Refuses what needs that capability if the device does not have it.
pub(super) fn require(nic: &Shared, cap: DeviceCap, attr: Attr) -> Result<(), Error> {
    let missing = Capability::of(cap);
    match nic.attr.caps.contains(cap) {
        true => Ok(()),
        false => Err(Error::NoCapability { attr, missing }),
    }
}
