//! Helpers shared by the test binaries.

#![deny(unsafe_code)]
