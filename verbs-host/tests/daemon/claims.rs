//! A daemon that follows one that was killed.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_cm::wire::{Apr, CommId, Dreq, Lap, Message as CmMessage};
use verbs_core::Qpn;
use verbs_core::host::message::{No, Token, VERSION};
use verbs_core::host::{Block, Message};
use verbs_core::time::Instant;
use verbs_host::{Ended, Record};

use crate::away;
use crate::bed::{Bed, Client, HERE, USER, hello_again, packet, rep};

/// What a daemon has had kept, as the next one reads it.
#[derive(Default)]
pub(crate) struct File(BTreeMap<Block, Token>);

impl File {
    pub(crate) fn keep(&mut self, bed: &mut Bed) {
        while let Some(Record { block, token }) = bed.daemon.poll_record() {
            match token {
                Some(token) => self.0.insert(block, token),
                None => self.0.remove(&block),
            };
        }
    }

    /// The blocks that are not free.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        self.0.keys().copied().collect()
    }

    /// The next daemon, of that seed.
    pub(crate) fn next(&self, seed: u64, now: Instant) -> Bed {
        let mut bed = Bed::of(seed);
        bed.now = now;
        let records = self.0.iter().map(|(&block, &token)| Record {
            block,
            token: Some(token),
        });
        bed.daemon.restore(bed.now, records);
        bed
    }
}

/// The client becomes one of that daemon, with its block.
fn rejoin(bed: &mut Bed, client: Client) -> Result<Client, No> {
    let block = client.block.number();
    bed.join_as(USER, &hello_again(VERSION, VERSION, client.token, &[block]))
}

/// Peers elsewhere ask about connections that the daemon has not seen begin: the client is asked, if it is known which one; or else
/// there is no answer that would end the connection.
fn asked_about_unknown_connections(bed: &mut Bed, client: Client, awaited: Qpn) {
    let lap = |remote_qpn| {
        CmMessage::Lap(Lap {
            local_id: CommId(11),
            remote_id: CommId(12),
            remote_qpn,
            ..Lap::default()
        })
    };
    let own = Qpn::new(client.block.qpns().start + 0x30);
    bed.arrive_cm(away(), &lap(own));
    assert_eq!(bed.messages(client), [lap(own)]);
    bed.arrive_cm(away(), &lap(awaited));
    bed.arrive_cm(away(), &rep(CommId(21), CommId(22), Qpn::new(0x55)));
    assert_eq!(bed.daemon.poll_mad(), None);
    assert!(bed.messages(client).is_empty());

    // Its own question tells the daemon of the connection: the answer comes to it, and so does the peer its end.
    let theirs = Qpn::new(0x66);
    let question = CmMessage::Lap(Lap {
        local_id: CommId(31),
        remote_id: CommId(32),
        remote_qpn: theirs,
        ..Lap::default()
    });
    bed.send_cm(client, away(), &question);
    let answer = CmMessage::Apr(Apr {
        local_id: CommId(32),
        remote_id: CommId(31),
        ..Apr::default()
    });
    bed.arrive_cm(away(), &answer);
    assert_eq!(bed.messages(client), [answer]);
}

/// Goal: a client keeps its numbers; those of a client that has ended in the meantime are reported as gone, and rest.
#[test]
fn clients_go_on_with_the_next_daemon() {
    let (mut bed, mut file) = (Bed::new(), File::default());
    let [one, other, dead] = [0; 3].map(|_| bed.join());
    let left = bed.join();
    bed.daemon.leave(bed.now, left.id, Ended::Died);
    file.keep(&mut bed);
    assert_ne!(one.token, other.token);

    let mut bed = file.next(8, bed.now);
    let again = rejoin(&mut bed, one).expect("it is its block");
    assert_eq!((again.block, again.token), (one.block, one.token));
    let other = rejoin(&mut bed, other).expect("it is its block");
    let qpn = Qpn::new(one.block.qpns().start + 0x20);
    bed.send(other, HERE, &packet(qpn, b"hello"));
    assert_eq!(bed.packets(again).len(), 1);
    // A connection that the daemon has not seen begin ends.
    let dreq = CmMessage::Dreq(Dreq {
        local_id: CommId(1),
        remote_id: CommId(2),
        remote_qpn: qpn,
        ..Dreq::default()
    });
    bed.send_cm(other, HERE, &dreq);
    assert_eq!(bed.messages(again), [dreq]);

    let qpn_of = |client: Client| Qpn::new(client.block.qpns().start + 0x20);
    asked_about_unknown_connections(&mut bed, again, qpn_of(dead));

    let until = bed.daemon.deadline().expect("clients have so long");
    bed.now = until;
    bed.daemon.expire(bed.now);
    let mut gone = [dead.block.number(), left.block.number()];
    gone.sort_unstable();
    assert_eq!(bed.told(again), [Message::Gone(gone.to_vec())]);
    assert_eq!(bed.daemon.deadline(), None);
    // Those two rest here, too: one that is late goes on, one that has left its number cannot.
    for _ in 0..200 {
        let new = bed.join();
        let known = [one, other, dead, left].map(|client| client.block);
        assert!(!known.contains(&new.block));
    }
    assert_eq!(rejoin(&mut bed, left).err(), Some(No::Claim));
    assert!(rejoin(&mut bed, dead).is_ok());
    // The next daemon has all of them.
    file.keep(&mut bed);
    let mut bed = file.next(9, bed.now);
    assert!(rejoin(&mut bed, one).is_ok() && rejoin(&mut bed, dead).is_ok());
    bed.now += Duration::from_secs(120);
    bed.join();
    file.keep(&mut bed);
    let free = [other, left].map(|client| file.0.contains_key(&client.block));
    assert_eq!(free, [false; 2], "they have rested");
    assert_eq!(rejoin(&mut bed, other).err(), Some(No::Claim));
}

/// Goal: nobody gets the numbers of another.
#[test]
fn only_the_owner_claims_a_block() {
    let (mut bed, mut file) = (Bed::new(), File::default());
    let [one, other] = [0; 2].map(|_| bed.join());
    file.keep(&mut bed);
    let mut bed = file.next(8, bed.now);
    let [ours, theirs] = [one, other].map(|client| client.block.number());
    let new = bed.join();
    for (token, blocks) in [
        (one.token, vec![theirs]),
        (one.token, vec![ours, theirs]),
        (one.token, vec![ours, ours]),
        (one.token, vec![ours; 5]),
        (one.token, vec![0]),
        (one.token, vec![0xfff]),
        ([0; 16], vec![ours]),
        (new.token, vec![new.block.number()]),
        (new.token, vec![ours]),
    ] {
        let refused = bed.join_as(USER, &hello_again(VERSION, VERSION, token, &blocks));
        assert_eq!(refused.err(), Some(No::Claim), "{blocks:?}");
    }
    rejoin(&mut bed, one).expect("nothing has changed");
    assert_eq!(rejoin(&mut bed, one).err(), Some(No::Claim), "it has it");
    rejoin(&mut bed, other).expect("nothing has changed");
}
