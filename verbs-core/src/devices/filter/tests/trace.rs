//! Spans.

use super::*;

/// A subscriber that writes down spans and events.
#[derive(Default)]
struct Scribe {
    lines: Lines,
    spans: AtomicU64,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }
}

impl tracing::Subscriber for Scribe {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "verbs"
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let id = self.spans.fetch_add(1, SeqCst) + 1;
        let mut text = Text(format!("{id} opens:"));
        attributes.record(&mut text);
        self.lines.lock().push(text.0);
        span::Id::from_u64(id)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(format!("{} records:", id.into_u64()));
        values.record(&mut text);
        self.lines.lock().push(text.0);
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(format!(
            "{:?} event:",
            event.parent().map(span::Id::into_u64)
        ));
        event.record(&mut text);
        self.lines.lock().push(text.0);
    }

    fn try_close(&self, _id: span::Id) -> bool {
        true
    }

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn trace_opens_a_span_for_each_verb_and_records_its_result() {
    let (tiny, scribe) = (Arc::new(Tiny::default()), Scribe::default());
    let lines = scribe.lines.clone();
    let fault = Arc::new(Fault::new(tiny));
    let device = Device::open(Arc::new(Trace::new(fault.clone())))
        .wait()
        .expect("it opens");
    let take = || std::mem::take(&mut *lines.lock());
    tracing::subscriber::with_default(scribe, || {
        let name = device.core().base().id();
        let query = device
            .query_port(3)
            .on_behalf_of(Origin::client(5).unwrap());
        assert_eq!(query.wait().expect_err("no ports"), no_port(3));
        let expected = [
            format!("1 opens: kind=QueryPort target={name} origin=Client(5)"),
            format!("1 records: result={}", no_port(3)),
            format!("Some(1) event: message=failed error={}", no_port(3)),
        ];
        assert_eq!(take(), expected);

        fault.inject(Kind::AllocPd, 1, FaultAction::Delay(Until::Released));
        let _ = device.alloc_pd().issue(drop);
        assert_eq!(
            take(),
            [format!(
                "2 opens: kind=AllocPd target={name} origin=Trusted"
            )]
        );
        fault.release();
        assert_eq!(
            take(),
            [
                "2 records: result=ok",
                "Some(2) event: message=completed",
                "3 opens: kind=DeallocPd target=PD 0x0 origin=Trusted",
                "3 records: result=ok",
                "Some(3) event: message=completed",
            ]
        );
    });
}
