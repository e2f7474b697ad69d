//! Management datagrams that the device answers with a command.

use verbs_core::Provider;
use verbs_core::mad::header::header_of;
use verbs_core::mad::{Class, Later, MadArrival, MadBytes, MadHeader, MadReply, MadVerdict};

/// Bytes of a GRH.
const GRH_LEN: usize = 40;

/// A datagram that waits for its command, with the right to answer it.
pub(super) struct Held {
    /// The arrival without what it borrows.
    rest: MadArrival<'static>,
    grh: Option<[u8; GRH_LEN]>,
    mad: MadBytes,
    reply: MadReply,
}

/// Replaces a datagram that is kept apart from its arrival.
static NO_MAD: MadBytes = [0; 256];

impl Held {
    /// Whether a datagram is of a class that devices answer themselves: subnet management and performance counters.
    /// Datagrams of other classes are for clients, and do not wait for a command.
    pub(super) fn is_the_devices(incoming: &MadArrival<'_>) -> bool {
        let header = MadHeader::parse(header_of(incoming.mad));
        let own = [Class::SUBN_LID, Class::SUBN_DIRECTED, Class::PERF];
        own.contains(&header.class) && !header.method.is_response()
    }

    pub(super) fn new(incoming: &MadArrival<'_>, reply: MadReply) -> Box<Self> {
        Box::new(Self {
            rest: MadArrival {
                mad: &NO_MAD,
                grh: None,
                later: Later::default(),
                ..*incoming
            },
            grh: incoming.grh.copied(),
            mad: *incoming.mad,
            reply,
        })
    }

    /// The command is carried out: sends the answer. A datagram that the device does not know gets no answer.
    pub(super) fn answer(self, provider: &dyn Provider) {
        let incoming = MadArrival {
            mad: &self.mad,
            grh: self.grh.as_ref(),
            ..self.rest
        };
        let mut answer = [0; 256];
        if provider.process_mad(&incoming, &mut answer) == MadVerdict::Reply {
            self.reply.send(&answer);
        }
    }
}
