//! Limits of arguments.

use verbs_core::{Attr, Error};

/// The argument's value is out of range, if it is.
pub(super) fn at_most(attr: Attr, got: u32, max: u32) -> Result<(), Error> {
    match got <= max {
        true => Ok(()),
        false => Err(Error::Invalid { attr, got, max }),
    }
}
