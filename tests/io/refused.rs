//! What the log says of a peer's request that is refused.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, span};
use verbs_core::Access;
use verbs_io::Error;
use verbs_simulator::Sim;

use crate::pair::message;
use crate::simulated::{Simulated, simulated};

/// Writes down the events of connections, as `verbs::rc=info` lets them through.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?};");
    }
}

impl tracing::Subscriber for Scribe {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "verbs::rc" && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _attributes: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _id: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// What the log has of a WRITE to memory that `revokes` has left, or that is longer than a right allows.
fn told(seed: u64, rights: Access, revokes: bool) -> Vec<String> {
    let (sim, scribe) = (Sim::new(seed), Scribe::default());
    let program = async {
        let opened = simulated(&sim, |opening| opening).await?;
        let Simulated { a, nets, .. } = &opened;
        let region = nets[1].region(64, rights | Access::LOCAL_WRITE).await?;
        let read = nets[1]
            .region(64, Access::REMOTE_READ | Access::LOCAL_WRITE)
            .await?;
        let mut bytes = region.token(0..64)?.to_bytes();
        if revokes {
            region.revoke().await?;
        } else {
            // The key of other memory, with the rights of this one.
            bytes[16..20].copy_from_slice(&read.token(0..64)?.to_bytes()[16..20]);
            bytes[..8].copy_from_slice(&read.token(0..64)?.to_bytes()[..8]);
        }
        let token = verbs_io::Token::from_bytes(&bytes)?;
        let failed = a.write(message(a, "no").await, token).await.unwrap_err();
        assert!(matches!(failed.error, Error::Broken(_)), "{failed}");
        drop(opened);
        Ok::<(), Error>(())
    };
    tracing::subscriber::with_default(scribe.clone(), || sim.run(program).unwrap().unwrap());
    let told = scribe.0.lock().unwrap();
    told.clone()
}

/// Goal: the side that refuses says why, and which queue pair; the other side says where to look. Method: a key that was revoked, and one without the right.
#[test]
fn the_log_says_why_a_request_is_refused() {
    for (revokes, why) in [
        (
            true,
            "no memory has this key: it was deregistered or invalidated, or never valid",
        ),
        (
            false,
            "the memory was registered without the right that this needs",
        ),
    ] {
        let lines = told(21, Access::REMOTE_WRITE, revokes);
        let [refusal, failure] = &lines[..] else {
            panic!("a line of each side: {lines:?}");
        };
        for part in ["a request of the peer was refused: NAK sent", "qpn=0x", why] {
            assert!(refusal.contains(part), "{refusal}");
        }
        let known = "the peer knows why, and its log says so";
        for part in [
            "a work request failed",
            "remote access error",
            "qpn=0x",
            known,
        ] {
            assert!(failure.contains(part), "{failure}");
        }
    }
}
