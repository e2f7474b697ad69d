//! What a library owes the process that it is part of: its signals are the program's, and its environment is the user's, who
//! may have fewer rights.

mod environment;
mod signals;

pub use environment::variable;
pub use signals::spawn_without_signals;
