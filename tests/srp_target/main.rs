//! A target of SRP. Everything runs in virtual time on one thread: neither end has a thread of its own.

mod commands;
mod hostile;
mod login;
mod manage;
mod raw;
