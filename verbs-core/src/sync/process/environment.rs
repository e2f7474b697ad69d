//! The environment, for settings that a user gives to programs.

use std::env;
use std::ffi::OsString;

/// The value of a variable of the environment; `None` if there is none, or if the process has rights that its user has not.
///
/// A program that is set-user-ID, or has capabilities of its file, must do nothing with those rights that its user could not
/// do otherwise: `VERBS_PCAP=/etc/shadow` would overwrite the file. It is as with `secure_getenv` of the C library.
pub fn variable(name: &str) -> Option<OsString> {
    unless(is_privileged(), || env::var_os(name))
}

fn unless<T>(is_privileged: bool, value: impl FnOnce() -> Option<T>) -> Option<T> {
    (!is_privileged).then(value).flatten()
}

/// Whether the system began the program with other rights than its user's.
#[cfg(not(miri))]
fn is_privileged() -> bool {
    // SAFETY: it only reads what the system has told the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Miri's programs have the rights of their user.
#[cfg(miri)]
fn is_privileged() -> bool {
    false
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_more_rights_than_its_user_has_no_settings() {
        assert!(!is_privileged(), "tests run with their user's rights");
        assert_eq!(variable("PATH"), env::var_os("PATH"));
        assert_eq!(unless(true, || Some(7)), None);
    }
}
