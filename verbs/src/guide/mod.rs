//! What there is to know beside the types.
//!
//! # Buffers
//!
//! A [`Buf`](crate::Buf) is a piece of registered memory that derefs to `[u8]`. It is its holder's alone: no peer has a
//! right to it, and the device has it only while an operation that was given it is under way. So a `Buf` is moved into
//! an operation, and comes back with the result, in a [`Failed`](crate::Failed) too:
//!
//! ```
//! # use verbs::prelude::*;
//! # async fn example(conn: &Connection, token: Token) -> Result<(), verbs::Error> {
//! let mut buf = conn.buf().await;
//! buf.fill_from(b"first");
//! let mut buf = conn.send(buf).await?;
//! buf.fill_from(b"second"); // the same memory, without another registration
//! if let Err(failed) = conn.write(buf, token).await {
//!     println!("{}; the buffer is here: {:?}", failed.error, failed.buf);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Buffers come from two places. [`Endpoint::buf`](crate::Endpoint::buf) takes one of the endpoint's pool, and waits
//! until there is one. [`Connection::recv`](crate::Connection::recv) hands out one of those that the connection
//! receives in: dropping it, or sending it on, makes room for another message. A program that keeps received buffers
//! slows its own peer down, and no other.
//!
//! READs and WRITEs may be longer than messages: [`Endpoint::pool`](crate::Endpoint::pool) adds buffers of another size.
//!
//! Memory that peers reach by themselves is a [`Region`](crate::Region). A peer may write there at any time, so there is
//! no slice of it; reads and writes copy. Its owner does not notice what is written, unless the peer says so:
//! [`Connection::write_with_imm`](crate::Connection::write_with_imm) tells it by a message of no bytes with a number.
//!
//! # Dropped futures
//!
//! No operation begins before its first poll. A future that is dropped while its operation waits for room takes the
//! operation with it. One that is dropped later leaves the operation under way, and the buffer goes back by itself when
//! the device is done with it. So `select!` and timeouts are safe, and what they cost is that the program does not
//! learn whether the operation took place. A message that was given to a `recv` that is dropped goes to the next.
//!
//! # Many at a time
//!
//! `send(buf).await` completes when the peer's adapter has acknowledged the message. A program that has much to send
//! does not wait for each: it has several tasks, or it uses [`posted`](crate::op::Send::posted), which waits only for
//! room in the queue. A [`batch`](crate::Connection::batch) posts several with one doorbell. Operations of a connection
//! are carried out in the order in which they were first polled.
//!
//! An operation that could be ready at once answers `Pending` once in 256, and wakes its task, so that a task that never
//! has to wait lets others run.
//!
//! # Closing
//!
//! [`Connection::close`](crate::Connection::close) waits for what is under way, then ends the connection. The peer's
//! `recv` yields what was sent before, then `None`. A connection that breaks is another thing: every operation from
//! then on fails with [`Error::Broken`](crate::Error::Broken) and the completion that was the cause, such as a token
//! that the peer had revoked, or a peer that does not answer in spite of all retries.
//!
//! A program that ends right after it has dropped a connection may take the message to the peer with it; `close` waits
//! for that.
//!
//! # Drivers
//!
//! Something has to take completions. A task that polls an operation does, for all of the endpoint. While all tasks sleep,
//! the event handlers of the completion queues do: there is no task to spawn and no runtime to name. The futures work
//! on any executor, on [`block_on`](crate::block_on), and on several threads; wakers are called on the thread that made
//! the completion. Simulations choose [`Driver::Manual`](crate::Driver::Manual), and call
//! [`Endpoint::turn`](crate::Endpoint::turn).
//!
//! # Errors
//!
//! What is wrong with an operation by itself is said before anything is posted, and the connection goes on:
//! [`OutOfRange`](crate::Error::OutOfRange), [`NoRight`](crate::Error::NoRight),
//! [`Misaligned`](crate::Error::Misaligned). What the device or the peer refuses ends the connection, as reliable
//! connections have it (IBTA volume 1, chapter 9.9): [`Broken`](crate::Error::Broken).

pub mod irps;
pub mod libibverbs;
