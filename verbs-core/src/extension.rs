//! Typed extensions: what a device has beyond the verbs, without a place in the table for each.
//!
//! ```
//! use verbs_core::extension::Extension;
//!
//! /// Counts packets of a device that can do that.
//! struct PacketCount;
//! impl Extension for PacketCount {
//!     const NAME: &'static str = "example.packet_count";
//!     type Input = u8;
//!     type Output = u64;
//! }
//! ```

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::device::{Device, DeviceCore, verb};
use crate::error::{Attr, Error};
use crate::request::{Issued, Request};

/// A call that a provider may have: a name for people and logs, and the types that go in and out.
///
/// Provider and caller share the type; it is the type that is matched, not the name.
pub trait Extension: 'static {
    /// Name, with the vendor in front.
    const NAME: &'static str;
    /// What the caller passes.
    type Input: Send + 'static;
    /// What the provider answers.
    type Output: Send + 'static;
}

/// Calls an extension; arguments of the verb.
pub struct CallExtension {
    name: &'static str,
    input: Option<Box<dyn Any + Send>>,
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
        let input = self.input.take()?;
        match input.downcast::<Input<E>>() {
            Ok(input) => Some(AnyOutput(Box::new(Output::<E>(f(input.0), PhantomData)))),
            Err(other) => {
                self.input = Some(other);
                None
            }
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
        let input: Box<dyn Any + Send> = Box::new(Input::<E>(input, PhantomData));
        let args = CallExtension {
            name: E::NAME,
            input: Some(input),
        };
        Call {
            request: Request::new(self.core(), args),
            extension: PhantomData,
        }
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
