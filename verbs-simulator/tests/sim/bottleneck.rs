//! Connections that meet in the queue of a switch.

use std::time::Duration;

use verbs_simulator::Bottleneck;

/// Too short for rates to converge.
fn short(seed: u64) -> Bottleneck {
    Bottleneck {
        before: Duration::from_millis(2),
        time: Duration::from_millis(8),
        ..Bottleneck::new(seed)
    }
}

/// Goal: HCAs that react to marks share a switch: they are fair, use it, and it loses nothing. Method: eight of them,
/// two seeds.
#[test]
fn eight_hosts_share_a_switch() {
    for seed in 1..=2 {
        let shares = Bottleneck::new(seed).run().unwrap();
        println!(
            "seed {seed}: index {}, used {}, {:?}",
            shares.fairness(),
            shares.used(),
            shares.queue
        );
        assert!(shares.is_good(), "seed {seed}: {shares:?}");
        assert!(shares.queue.marked > 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_shares() {
    let shares = [1, 1, 2].map(|seed| short(seed).run().unwrap());
    assert_eq!(shares[0], shares[1]);
    assert_ne!(shares[0], shares[2]);
}

/// Goal: a run that is looked at is the same run, and is seen from its beginning to its end: the queue never beyond its longest,
/// and connections that are slowed down. Method: shares with and without looking.
#[test]
fn a_run_that_is_looked_at_goes_as_it_would() {
    let every = Duration::from_micros(100);
    let seen = Bottleneck {
        sampling: Some(every),
        ..short(1)
    };
    let (seen, unseen) = (seen.run().unwrap(), short(1).run().unwrap());
    assert_eq!((&seen.bytes, seen.queue), (&unseen.bytes, unseen.queue));
    assert!(unseen.course.is_empty());
    assert!(
        (98..=100).contains(&seen.course.len()),
        "{}",
        seen.course.len()
    );
    for (nth, sample) in (1..).zip(&seen.course) {
        assert_eq!((sample.at, sample.rates.len()), (nth * every, 8));
        assert!(sample.waiting <= seen.queue.longest, "{sample:?}");
    }
    let last = seen.course.last().unwrap();
    let slowed = |rate: &Option<u64>| rate.is_some_and(|rate| rate < 1_250_000_000);
    assert!(last.rates.iter().all(slowed), "{last:?}");
    assert!(seen.course.iter().any(|sample| sample.waiting > 0));
}

/// Goal: the bars are missed by senders that do not react.
#[test]
fn hosts_that_do_not_react_are_found_out() {
    let blind = Bottleneck {
        congestion: None,
        ..short(1)
    };
    let shares = blind.run().unwrap();
    assert!(!shares.is_good(), "{shares:?}");
    assert!(shares.queue.dropped > 0, "{shares:?}");
}
