//! Flows in the large: packets of many senders in a fat tree, without HCAs. The senders react to congestion as queue pairs of
//! an HCA do, by the same code ([`ReactionPoint`]); switches mark, and hold back who sends more than they have room for.

mod link;
mod pattern;
mod report;
mod tree;
mod world;

use std::time::Duration;

use hca_sim::Dcqcn;

use crate::SwitchQueue;

pub use pattern::Pattern;
pub use report::{Completion, FlowReport, Spread};

#[cfg(doc)]
use hca_sim::ReactionPoint;

/// Hosts of a tree at most: each to every other are a million flows.
const HOSTS_MAX: usize = 1024;

/// Flows through a fat tree of two levels: as many leaves and spines as each leaf has hosts, and a link between each of them, so
/// that as much goes up from a leaf as comes from its hosts. Each flow takes one path, which its number draws.
///
/// The tree loses nothing: a switch with more than 256 KiB from one link tells the sender to pause (priority flow control), which
/// may be a switch that then has no room either.
///
/// ```
/// use verbs_simulator::{FlowRun, Pattern};
///
/// let run = FlowRun { bytes: 100_000, ..FlowRun::new(1, 64, Pattern::Permutation) };
/// let report = run.run().expect("64 hosts are a square");
/// assert_eq!(report.flows.len(), 64);
/// assert!(report.spread(false).expect("there are some").median >= 1.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRun {
    /// Draws who sends to whom, paths and marks.
    pub seed: u64,
    /// How many hosts there are: a square number from 4 to 1,024, such as 64 or 256.
    pub hosts: usize,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Bytes of each flow; 4 MB by default.
    pub bytes: u64,
    /// The rate of every link, and how switches mark. Its limit has no meaning, as nothing is lost.
    pub queue: SwitchQueue,
    /// How senders react to marks; `None`: not at all.
    pub congestion: Option<Dcqcn>,
    /// The delay of each link; 1 us by default.
    pub delay: Duration,
    /// How much later bystanders of an incast begin, so that its senders have had time to react; 5 ms by default.
    pub bystanders_after: Duration,
}

impl FlowRun {
    /// With the rate, 40 Gbit/s, the marks and the reaction of the paper on DCQCN.
    pub fn new(seed: u64, hosts: usize, pattern: Pattern) -> Self {
        let rate = 5_000_000_000;
        let dcqcn = Dcqcn {
            line_rate: rate,
            ai_rate: 5_000_000,
            hai_rate: 50_000_000,
            ..Dcqcn::default()
        };
        Self {
            seed,
            hosts,
            pattern,
            bytes: 4_000_000,
            queue: SwitchQueue {
                rate,
                ..SwitchQueue::default()
            },
            congestion: Some(dcqcn),
            delay: Duration::from_micros(1),
            bystanders_after: Duration::from_millis(5),
        }
    }

    /// Runs it until all flows are complete. `None` if there is no such tree.
    pub fn run(&self) -> Option<FlowReport> {
        let tree = tree::Tree::new(self.hosts).filter(|_| self.hosts <= HOSTS_MAX)?;
        Some(world::World::new(*self, tree).run())
    }
}
