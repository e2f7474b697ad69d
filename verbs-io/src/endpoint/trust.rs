//! The word of who opens an endpoint, in place of the provider's.

use super::Opening;

impl Opening {
    /// Opens the endpoint although the device's provider does not vouch for what it does with registered memory.
    ///
    /// ```compile_fail,E0133
    /// # fn filtered() -> verbs_core::Device { unimplemented!() }
    /// // A filter of safe code may keep the memory of each registration, and write to it while a buffer is lent.
    /// let opening = verbs_io::Endpoint::on(filtered()).trust();
    /// ```
    ///
    /// # Safety
    /// The device's provider, with all filters in front of it, keeps what [`Vouch`](verbs_core::provider::Vouch) says, until
    /// the endpoint and all that it has lent are gone.
    pub unsafe fn trust(mut self) -> Self {
        self.trusted = true;
        self
    }
}
