//! Typed extensions: what a device has beyond the verbs, without a place in the table for each.
//!
//! A device [lists](Device::extensions) them by name, version and the capability that they need. Rust programs call them
//! by type ([`Device::call`]); programs behind a C interface by name and version, with bytes
//! ([`Device::call_by_name`]). A work request of an extension is posted by type
//! ([`SendQueue::post_extension`](crate::SendQueue::post_extension)). What a device does not have is refused.
//!
//! ```
//! use verbs_core::extension::{ByteExtension, CallExtension, Extension, ExtensionInfo};
//! # use verbs_core::testing::Null;
//! # use verbs_core::{AnyCommand, Attr, Device, Error, Provider};
//! # use std::sync::Arc;
//!
//! /// Counts packets of a device that can do that.
//! struct PacketCount;
//! impl Extension for PacketCount {
//!     const NAME: &'static str = "example.packet_count";
//!     const VERSION: u32 = 2;
//!     type Input = u8;
//!     type Output = u64;
//! }
//! impl ByteExtension for PacketCount {
//!     fn decode(input: &[u8]) -> Option<u8> {
//!         <[u8; 1]>::try_from(input).ok().map(|[port]| port)
//!     }
//!     fn encode(output: u64) -> Vec<u8> {
//!         output.to_le_bytes().into()
//!     }
//! }
//!
//! struct Card(Null);
//! impl Provider for Card {
//!     fn issue(&self, command: AnyCommand<'_>) {
//!         match command {
//!             AnyCommand::CallExtension(command) => {
//!                 let (mut call, reply) = command.split();
//!                 let answer = call.answer_bytes::<PacketCount>(|port| 100 * u64::from(port));
//!                 reply.complete(answer.ok_or(Error::Unsupported(Attr::Extension)));
//!             }
//!             other => self.0.issue(other),
//!         }
//!     }
//!     fn extensions(&self) -> &[ExtensionInfo] {
//!         const { &[ExtensionInfo::call::<PacketCount>()] }
//!     }
//! }
//!
//! let device = Device::open(Arc::new(Card(Null::default()))).wait()?;
//! assert_eq!(device.extension("example.packet_count").map(|info| info.version), Some(2));
//! assert_eq!(device.call::<PacketCount>(1).wait(), Ok(100));
//! let bytes = device.call_by_name("example.packet_count", 2, &[1]).wait()?;
//! assert_eq!(bytes, 100_u64.to_le_bytes());
//! let older = device.call_by_name("example.packet_count", 1, &[1]).wait();
//! assert_eq!(older, Err(Error::Unsupported(Attr::Extension)));
//! # Ok::<(), Error>(())
//! ```

mod listed;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::device::{Device, DeviceCore};
use crate::error::{Attr, Error, Why};
use crate::request::{Issued, Request};
use crate::sync::Arc;
use crate::verb::verb;

pub use listed::{ByteExtension, Extension, ExtensionInfo, ExtensionKind, Work, WorkExtension};

/// Calls an extension; arguments of the verb.
pub struct CallExtension {
    name: &'static str,
    input: Option<Passed>,
}

/// What a caller passes.
enum Passed {
    /// As a value of the extension's own type.
    Typed(Box<dyn Any + Send>),
    /// As bytes, for that version.
    Bytes(u32, Vec<u8>),
}

/// The input of the extension `E`, marked so that two extensions with the same input differ.
struct Input<E: Extension>(E::Input, PhantomData<fn(E)>);
struct Output<E: Extension>(E::Output, PhantomData<fn(E)>);

/// An extension's answer before its type is known again.
pub struct AnyOutput(Box<dyn Any + Send>);

verb!(CallExtension, DeviceCore => AnyOutput);

impl CallExtension {
    /// The extension's name, for logs.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs `f` if this calls the extension `E`: for a provider, once per extension that it has.
    /// `None`: it calls another, or was taken before.
    pub fn answer<E: Extension>(
        &mut self,
        f: impl FnOnce(E::Input) -> E::Output,
    ) -> Option<AnyOutput> {
        match self.input.take()? {
            Passed::Typed(input) => match input.downcast::<Input<E>>() {
                Ok(input) => Some(AnyOutput(Box::new(Output::<E>(f(input.0), PhantomData)))),
                Err(other) => {
                    self.input = Some(Passed::Typed(other));
                    None
                }
            },
            bytes @ Passed::Bytes(..) => {
                self.input = Some(bytes);
                None
            }
        }
    }

    /// As [`CallExtension::answer`], for an extension that can also be called with bytes. Bytes that are no input of it
    /// end the call with [`Error::Mismatch`].
    pub fn answer_bytes<E: ByteExtension>(
        &mut self,
        f: impl FnOnce(E::Input) -> E::Output,
    ) -> Option<AnyOutput> {
        match &self.input {
            Some(Passed::Bytes(version, bytes))
                if self.name == E::NAME && *version == E::VERSION =>
            {
                let answer = match E::decode(bytes) {
                    Some(input) => Ok(E::encode(f(input))),
                    None => Err(Error::Mismatch {
                        attr: Attr::Extension,
                        why: Why::Malformed,
                    }),
                };
                self.input = None;
                Some(AnyOutput(Box::new(answer)))
            }
            _ => self.answer::<E>(f),
        }
    }
}

impl fmt::Debug for CallExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallExtension({})", self.name)
    }
}

/// A call of the extension `E`: a request whose answer has its type.
#[must_use = "a call does nothing until issued, awaited or waited for"]
pub struct Call<'a, E: Extension> {
    request: Request<'a, CallExtension>,
    extension: PhantomData<fn(E)>,
}

impl Device {
    /// Calls an extension of the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not have it.
    pub fn call<E: Extension>(&self, input: E::Input) -> Call<'_, E> {
        Call::of(self.core(), input)
    }
}

impl<'a, E: Extension> Call<'a, E> {
    /// A call on that device.
    pub(crate) fn of(device: &'a Arc<DeviceCore>, input: E::Input) -> Self {
        let input: Box<dyn Any + Send> = Box::new(Input::<E>(input, PhantomData));
        let args = CallExtension {
            name: E::NAME,
            input: Some(Passed::Typed(input)),
        };
        Self {
            request: Request::new(device, args),
            extension: PhantomData,
        }
    }
}

/// A call of an extension by its name.
#[must_use = "a call does nothing until issued, awaited or waited for"]
pub struct NamedCall<'a> {
    request: Request<'a, CallExtension>,
}

impl Device {
    /// The extensions that the device has. A direct call.
    pub fn extensions(&self) -> &[ExtensionInfo] {
        self.core().provider_of().extensions()
    }

    /// The extension of that name; `None` if the device does not have it.
    pub fn extension(&self, name: &str) -> Option<ExtensionInfo> {
        let mut all = self.extensions().iter();
        all.find(|info| info.name == name).copied()
    }

    /// Calls an extension by its name, with bytes: for programs behind a C interface, which do not share its types. The
    /// extension says what its bytes mean.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not have it, not in this version, or not for bytes;
    /// [`Error::Mismatch`] for bytes that are none of its input.
    pub fn call_by_name(&self, name: &str, version: u32, input: &[u8]) -> NamedCall<'_> {
        let listed = self.extension(name);
        let args = CallExtension {
            name: listed.map_or("unknown", |info| info.name),
            input: Some(Passed::Bytes(version, input.into())),
        };
        NamedCall {
            request: Request::new(self.core(), args),
        }
    }
}

impl NamedCall<'_> {
    /// As [`Request::issue`].
    #[track_caller]
    pub fn issue(self, routine: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static) -> Issued {
        self.request.issue(move |result| routine(bytes(result)))
    }

    /// As [`Request::wait`].
    ///
    /// # Errors
    /// As [`Device::call_by_name`]; [`Error::WouldBlock`] under NoBlock.
    #[track_caller]
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        bytes(self.request.wait())
    }

    /// Issues at the first poll, as an awaited [`Request`] does.
    ///
    /// # Errors
    /// As [`Device::call_by_name`].
    pub async fn run(self) -> Result<Vec<u8>, Error> {
        bytes(self.request.await)
    }
}

fn bytes(result: Result<AnyOutput, Error>) -> Result<Vec<u8>, Error> {
    match result?.0.downcast::<Result<Vec<u8>, Error>>() {
        Ok(answer) => *answer,
        // Only `answer_bytes` makes an answer to bytes.
        Err(_) => Err(Error::Unsupported(Attr::Extension)),
    }
}

impl<E: Extension> Call<'_, E> {
    /// As [`Request::issue`].
    #[track_caller]
    pub fn issue(self, routine: impl FnOnce(Result<E::Output, Error>) + Send + 'static) -> Issued {
        self.request
            .issue(move |result| routine(typed::<E>(result)))
    }

    /// As [`Request::wait`].
    ///
    /// # Errors
    /// The extension's; [`Error::WouldBlock`] under NoBlock.
    #[track_caller]
    pub fn wait(self) -> Result<E::Output, Error> {
        typed::<E>(self.request.wait())
    }

    /// Issues at the first poll, as an awaited [`Request`] does.
    ///
    /// # Errors
    /// The extension's.
    pub async fn run(self) -> Result<E::Output, Error> {
        typed::<E>(self.request.await)
    }
}

fn typed<E: Extension>(result: Result<AnyOutput, Error>) -> Result<E::Output, Error> {
    match result?.0.downcast::<Output<E>>() {
        Ok(output) => Ok(output.0),
        // Only `answer::<E>` makes an answer to a call of `E`.
        Err(_) => Err(Error::Unsupported(Attr::Extension)),
    }
}
