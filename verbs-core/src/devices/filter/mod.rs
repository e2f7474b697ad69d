//! Filters: providers that stand in front of a provider and look at what goes by, as filter drivers
//! do.
//!
//! A filter has three tools. It may *refuse* a command, which then goes no further. It may let a
//! command [through a frame](crate::AnyCommand::through) and see the result on its way back, or make
//! a failure of it; frames unwind innermost first. It may [pend](crate::AnyCommand::pend) a command
//! and pass it on later, or complete it after requests of its own, made
//! [on behalf of](crate::Request::on_behalf_of) the same origin.
//!
//! Filters stack in any order: `Trace::new(Arc::new(Fault::new(hca)))`.

/// What the filters of this folder leave to the provider behind them, which is in that field: all but commands.
macro_rules! passes_on {
    ($inner:ident) => {
        fn extensions(&self) -> &[crate::extension::ExtensionInfo] {
            self.$inner.extensions()
        }

        fn process_mad(
            &self,
            incoming: &crate::mad::MadArrival<'_>,
            reply: &mut crate::mad::MadBytes,
        ) -> crate::mad::MadVerdict {
            self.$inner.process_mad(incoming, reply)
        }

        fn query_provider(&self, port: u8) -> crate::provider_attr::ProviderAttr {
            self.$inner.query_provider(port)
        }

        fn seed(&self) -> Option<u64> {
            self.$inner.seed()
        }

        fn vouch(&self) -> Option<crate::provider::Vouch> {
            crate::provider::Vouch::over_own(self, &*self.$inner)
        }

        fn timer(&self) -> Option<crate::sync::Arc<dyn crate::timer::Timer>> {
            self.$inner.timer()
        }

        fn host_ports(&self) -> Option<crate::sync::Arc<dyn crate::host::HostPorts>> {
            self.$inner.host_ports()
        }
    };
}

mod fault;
mod rename;
mod trace;

#[cfg(all(test, not(verbs_loom)))]
mod tests;

pub use fault::{Fault, FaultAction, Until};
pub use rename::Rename;
pub use trace::Trace;
