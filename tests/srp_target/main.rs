//! A target of SRP. Everything runs in virtual time on one thread: neither end has a thread of its own.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod commands;
mod hostile;
mod limits;
mod login;
mod manage;
mod news;
mod raw;
mod silence;
