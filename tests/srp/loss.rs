//! SRP over networks that lose, duplicate and reorder packets.
//!
//! Goal: the disk contains what was written, every command ends exactly once, and a seed always gives the same run.
//! Method: a seed draws network, options, lists and load; a copy of the disk has the expected bytes.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hca_sim::clock::Instant;
use ulp_srp::initiator::{Mechanism, Options, Session};
use ulp_srp::iu::Lun;
use verbs_core::{Extent, Memory};
use verbs_simulator::{Counts, Draw, LinkConfig, Ppm, Sim};

use crate::bed::{Bed, PAGE, get, pattern, put, seeds};
use crate::target::BLOCK;

/// Seeds that are run; `VERBS_SRP_SEEDS` requests more.
const SEEDS: u64 = 24;
/// Rounds of a seed, commands of a round, and blocks that belong to each of them.
const ROUNDS: u64 = 6;
const COMMANDS: usize = 8;
const BLOCKS: u32 = 64;

fn network(draw: &mut Draw) -> LinkConfig {
    LinkConfig {
        loss: Ppm::percent(draw.below(8) as u32),
        duplication: Ppm::percent(draw.below(10) as u32),
        reordering: Ppm::percent(draw.below(20) as u32),
        delay: draw.duration(Duration::ZERO..=Duration::from_micros(300)),
        ..LinkConfig::default()
    }
}

fn options(draw: &mut Draw) -> Options {
    let ways = [
        Mechanism::Request,
        Mechanism::FastReg,
        Mechanism::Fmr,
        Mechanism::Published,
    ];
    Options {
        mechanism: *draw.pick(&ways),
        queue_depth: 1 + draw.below(16) as u16,
        channels: 1 + draw.below(3) as u8,
        handles: Some(1 + draw.below(8) as u32),
        immediate_max: [0, 2048, 8192][draw.below(3)],
        login_timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

/// A scatter list of that many blocks, in pieces of whole blocks, somewhere in the memory.
fn list<'m>(draw: &mut Draw, memory: &'m Arc<Memory>, blocks: u32) -> Vec<Extent<'m>> {
    let mut list = Vec::new();
    let (mut left, mut offset) = (blocks, draw.below(8) * BLOCK as usize);
    while left > 0 {
        let take = match draw.below(2) {
            0 => 8.min(left),
            _ => 1 + draw.below(left as usize) as u32,
        };
        let len = take * BLOCK;
        list.push(Extent {
            memory,
            offset,
            len,
        });
        offset += len as usize + draw.below(3) * BLOCK as usize;
        if draw.below(2) == 0 {
            offset = offset.next_multiple_of(PAGE);
        }
        left -= take;
    }
    list
}

/// Memory for each command, for which the session has a key.
async fn published(session: &Session) -> Vec<Arc<Memory>> {
    let memories: Vec<_> = (0..COMMANDS)
        .map(|_| Arc::new(Memory::alloc(64 * PAGE).unwrap()))
        .collect();
    for memory in &memories {
        session.publish(memory).await.unwrap();
    }
    memories
}

/// The result of a seed: packets, completions, events, timers, and the time of the end. (A digest covers addresses of
/// memory too, which depend on this process.)
fn run(seed: u64) -> (Counts, Instant) {
    let sim = Sim::new(seed);
    let mut draw = sim.draw();
    sim.run(async {
        let bed = Bed::in_sim(&sim).await;
        let mut options = options(&mut draw);
        // The target may not invalidate a key of published memory: then handles are never exhausted.
        let invalidates = options.mechanism == Mechanism::FastReg && draw.below(2) == 0;
        if invalidates {
            options.handles = Some(u32::from(options.queue_depth * options.runs_max));
        }
        bed.target.script(|script| {
            script.limit = 2 + draw.below(20) as i32;
            script.invalidates = invalidates;
        });
        sim.network().set_all(network(&mut draw));
        let session = bed.login(options).await;
        let memories = published(&session).await;
        for round in 0..ROUNDS {
            let lists: Vec<_> = memories
                .iter()
                .map(|memory| {
                    let blocks = 1 + draw.below(BLOCKS as usize) as u32;
                    (blocks, list(&mut draw, memory, blocks))
                })
                .collect();
            let bytes: Vec<_> = (0_u64..)
                .zip(&lists)
                .map(|(at, (blocks, _))| pattern((blocks * BLOCK) as usize, seed ^ round << 8 ^ at))
                .collect();
            let place = |at: usize| at as u64 * u64::from(BLOCKS);
            for ((_, list), bytes) in lists.iter().zip(&bytes) {
                put(list, bytes);
            }
            let writes = lists
                .iter()
                .enumerate()
                .map(|(at, (blocks, list))| session.write(Lun(0), place(at), *blocks, list));
            for done in join_all(writes).await {
                done.unwrap();
            }
            for ((_, list), bytes) in lists.iter().zip(&bytes) {
                put(list, &vec![0xee; bytes.len()]);
            }
            let reads = lists
                .iter()
                .enumerate()
                .map(|(at, (blocks, list))| session.read(Lun(0), place(at), *blocks, list));
            for done in join_all(reads).await {
                done.unwrap();
            }
            for ((_, list), bytes) in lists.iter().zip(&bytes) {
                assert!(get(list) == *bytes, "seed {seed}, round {round}");
            }
        }
        let executed = bed.target.state.lock().executed;
        assert_eq!(
            executed,
            2 * ROUNDS * COMMANDS as u64,
            "seed {seed}: each once"
        );
        assert_eq!(bed.target.state.lock().overdrawn, 0, "seed {seed}");
        session.logout().await;
    })
    .unwrap();
    (sim.counts(), sim.now())
}

#[test]
fn the_disk_is_what_was_written_whatever_the_network_does() {
    for seed in 0..seeds(SEEDS) {
        println!("seed {seed}");
        assert_eq!(run(seed), run(seed), "seed {seed} is decided by itself");
    }
}
