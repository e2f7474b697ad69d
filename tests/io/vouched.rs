//! Memory is lent as slices only where the provider, and all that stands in front of it, vouches for it.

use std::sync::Mutex;

use futures::executor::block_on;
use hca_sim::Hca;
use verbs_core::command::RequestId;
use verbs_core::filter::Trace;
use verbs_core::provider::Vouch;
use verbs_core::sync::Arc;
use verbs_core::timer::Timer;
use verbs_core::{AnyCommand, Device, Memory, Provider, ProviderAttr};
use verbs_io::{Endpoint, Error};

/// A filter of safe code that keeps what is registered, to write to it later.
struct Spy {
    inner: Arc<dyn Provider>,
    seen: Mutex<Vec<Arc<Memory>>>,
}

impl Provider for Spy {
    fn issue(&self, command: AnyCommand<'_>) {
        if let AnyCommand::RegMr(command) = &command {
            self.seen.lock().unwrap().push(Arc::clone(&command.memory));
        }
        self.inner.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.inner.timer()
    }

    /// What the HCA says, as if it were its own word.
    fn vouch(&self) -> Option<Vouch> {
        self.inner.vouch()
    }
}

/// Goal: no filter of safe code sees the memory of buffers that are lent. Method: it stands before the HCA, behind a filter
/// that vouches and before one; each time the endpoint is refused before it has registered anything, and says why. Without it
/// the endpoint opens.
#[test]
fn a_filter_of_safe_code_sees_no_memory_that_is_lent() {
    for (over, under) in [(false, false), (true, false), (false, true), (true, true)] {
        let traced = |wanted, inner: Arc<dyn Provider>| match wanted {
            true => Arc::new(Trace::new(inner)) as Arc<dyn Provider>,
            false => inner,
        };
        let hca = || traced(under, Hca::loopback().build());
        let spy = Arc::new(Spy {
            inner: hca(),
            seen: Mutex::default(),
        });
        let device = Device::open(traced(over, Arc::clone(&spy) as _))
            .wait()
            .unwrap();
        assert!(!device.is_vouched());
        let error = block_on(Endpoint::on(device).open()).unwrap_err();
        assert_eq!(error, Error::NotVouched);
        assert!(error.to_string().contains("Provider::vouch"), "{error}");
        assert!(spy.seen.lock().unwrap().is_empty());

        let device = Device::open(traced(over, hca())).wait().unwrap();
        assert!(device.is_vouched());
        let endpoint = block_on(Endpoint::on(device).open()).unwrap();
        assert!(endpoint.try_buf().is_some());
    }
}
