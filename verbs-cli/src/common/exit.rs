//! Exit codes, as `--help` lists them. Wrong arguments end with clap's own 2.

/// A file could not be read, written or put in place.
pub(crate) const FILES: u8 = 1;
/// The arguments are wrong.
pub(crate) const USAGE: u8 = 2;
/// What arrived has another digest than the source.
pub(crate) const DIGEST: u8 = 3;
/// The source changed while it was being copied.
pub(crate) const CHANGED: u8 = 4;
/// A device failed or was removed.
pub(crate) const DEVICE: u8 = 5;
/// A simulated run broke a rule.
pub(crate) const BROKEN: u8 = 6;
/// Another program does already what this one was to do.
pub(crate) const RUNNING: u8 = 7;
