//! What an extension is, and how a device lists it.

use std::any::Any;
use std::fmt;

use crate::caps::DeviceCap;

/// A call that a provider may have: a name for people and logs, and the types that go in and out.
///
/// Provider and caller share the type; it is the type that is matched, not the name.
pub trait Extension: 'static {
    /// Name, with the vendor in front.
    const NAME: &'static str;
    /// Counts up when what goes in or out changes its meaning.
    const VERSION: u32 = 1;
    /// Capabilities that the device needs for it.
    const NEEDS: DeviceCap = DeviceCap::empty();
    /// What the caller passes.
    type Input: Send + 'static;
    /// What the provider answers.
    type Output: Send + 'static;
}

/// An extension that can be called with bytes, for programs that do not share its types.
pub trait ByteExtension: Extension {
    /// What the caller passes, from bytes; `None` if they are none of it.
    fn decode(input: &[u8]) -> Option<Self::Input>;

    /// The answer as bytes.
    fn encode(output: Self::Output) -> Vec<u8>;
}

/// A work request of an extension. Provider and poster share the type.
pub trait WorkExtension: Any {
    /// Name, with the vendor in front.
    const NAME: &'static str;
    /// Counts up when its meaning changes.
    const VERSION: u32 = 1;
    /// Capabilities that the device needs for it.
    const NEEDS: DeviceCap = DeviceCap::empty();
}

/// An extension as a device lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionInfo {
    /// Name, with the vendor in front.
    pub name: &'static str,
    /// Version.
    pub version: u32,
    /// How it is used.
    pub kind: ExtensionKind,
    /// Capabilities that the device needs for it: a device without them does not list it.
    pub needs: DeviceCap,
}

/// How an extension is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionKind {
    /// By a request: [`Device::call`](crate::Device::call).
    Call,
    /// By a work request: [`SendQueue::post_extension`](crate::SendQueue::post_extension).
    WorkRequest,
}

impl ExtensionInfo {
    /// What is listed of that call.
    pub const fn call<E: Extension>() -> Self {
        Self {
            name: E::NAME,
            version: E::VERSION,
            kind: ExtensionKind::Call,
            needs: E::NEEDS,
        }
    }

    /// What is listed of that work request.
    pub const fn work_request<W: WorkExtension>() -> Self {
        Self {
            name: W::NAME,
            version: W::VERSION,
            kind: ExtensionKind::WorkRequest,
            needs: W::NEEDS,
        }
    }
}

/// A work request of an extension, as a provider gets it.
#[derive(Clone, Copy)]
pub struct Work<'w> {
    name: &'static str,
    what: &'w dyn Any,
}

impl<'w> Work<'w> {
    pub(crate) fn new<W: WorkExtension>(what: &'w W) -> Self {
        Self {
            name: W::NAME,
            what,
        }
    }

    /// The extension's name, for logs.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The work request, if it is one of the extension `W`.
    pub fn get<W: WorkExtension>(self) -> Option<&'w W> {
        self.what.downcast_ref()
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({})", self.name)
    }
}
