//! Helpers shared by the test binaries.
