//! Single scenarios, message by message. What is expected of whole runs is in `tests/sim`.

mod closing;
mod half_open;
mod hostile;
mod lab;
mod linux;
mod listening;
mod making;
mod paths;
mod refused;
mod resolving;
mod waits;
mod watch;
mod xrc;
