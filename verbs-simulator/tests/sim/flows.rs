//! Flows through a fat tree.

use std::time::Duration;

use verbs_simulator::{FlowReport, FlowRun, Pattern};

fn run(run: FlowRun) -> FlowReport {
    let report = run.run().expect("a square");
    for flow in &report.flows {
        assert!(flow.took >= flow.alone, "{flow:?}");
    }
    report
}

/// Goal: a flow that shares no link takes exactly the time that the report states for a flow alone. Method: one host of sixteen
/// sends to another one, while the other hosts have not begun to send. The length is one byte, or about four packets, or many
/// packets; some seeds choose two hosts of one leaf, and others a path through a spine.
#[test]
fn a_flow_alone_takes_what_it_has_to() {
    for bytes in [1, 4095, 4096, 4097, 1_000_000] {
        let mut crossed = [false; 2];
        for seed in 0..20 {
            let report = run(FlowRun {
                bytes,
                ..FlowRun::new(seed, 16, Pattern::Incast(1))
            });
            let flow = report.flows[0];
            assert_eq!(flow.took, flow.alone, "seed {seed}, {bytes} bytes");
            crossed[usize::from(flow.from / 4 != flow.to / 4)] = true;
        }
        assert_eq!(crossed, [true; 2]);
    }
}

/// Goal: the same seed is the same run, and another one is another.
#[test]
fn a_seed_determines_a_run() {
    let digests = [1, 1, 2].map(|seed| run(FlowRun::new(seed, 64, Pattern::Incast(20))).digest());
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
}

/// Goal: what the paper has senders react for: without, congestion spreads to flows that have no part in it, as links are told to
/// pause; with it, these are hardly slower than alone. Method: three quarters of a tree send to one host, with the reaction and
/// without; three seeds.
#[test]
fn bystanders_of_an_incast_gain_by_the_reaction() {
    for seed in 1..=3 {
        let reacting = FlowRun::new(seed, 64, Pattern::Incast(48));
        let blind = FlowRun {
            congestion: None,
            ..reacting
        };
        let [reacting, blind] = [reacting, blind].map(run);
        let bystanders = [&reacting, &blind].map(|report| report.spread(true).expect("15"));
        println!(
            "seed {seed}: {bystanders:?}, {} and {} pauses",
            reacting.pauses, blind.pauses
        );
        let [gains, loses] = bystanders;
        assert!(
            gains.mean < loses.mean / 2.0 && gains.p99 < loses.p99,
            "seed {seed}"
        );
        assert!(reacting.pauses < blind.pauses / 5, "seed {seed}");
        assert!(reacting.notified > 0);
        // The link to the host is the bottleneck of both.
        let whole = Duration::from_nanos(48 * 800_000);
        for report in [&reacting, &blind] {
            assert!(report.took >= whole, "{:?}", report.took);
        }
        assert!(blind.took < whole * 11 / 10, "{:?}", blind.took);
    }
}

/// Goal: hosts that receive from all others at once use the links well. Method: each of sixteen hosts sends to every other. The
/// run takes at least the time in which a link carries what one host receives, and less than three times that.
#[test]
fn all_to_all_uses_what_there_is() {
    let report = run(FlowRun {
        bytes: 20_000,
        ..FlowRun::new(1, 16, Pattern::AllToAll)
    });
    assert_eq!(report.flows.len(), 16 * 15);
    let whole = Duration::from_nanos(15 * 20_000 / 5);
    assert!(
        report.took >= whole && report.took < 3 * whole,
        "{:?}",
        report.took
    );
}

#[test]
fn what_is_no_tree_is_refused() {
    for hosts in [0, 1, 2, 65, 1025, 33 * 33] {
        assert!(FlowRun::new(1, hosts, Pattern::Permutation).run().is_none());
    }
}
