//! Who sends to whom.

use crate::Draw;

/// Which flows there are. All begin at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// So many hosts to one, chosen by the seed; each other host sends to another one of those, which have no part in it.
    Incast(usize),
    /// Each host to another one, so that each receives one flow.
    Permutation,
    /// Each host to every other.
    AllToAll,
}

/// The ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether it has no part in the incast that is measured.
    pub(super) is_bystander: bool,
}

impl Pattern {
    pub(super) fn flows(self, hosts: usize, draw: &mut Draw) -> Vec<Ends> {
        let mut all: Vec<usize> = (0..hosts).collect();
        for last in (1..hosts).rev() {
            all.swap(last, draw.below(last + 1));
        }
        match self {
            Self::Incast(senders) => {
                let senders = senders.clamp(1, hosts - 1);
                let (incast, others) = all.split_at(senders + 1);
                let to = incast[senders];
                let mut flows: Vec<_> = incast[..senders]
                    .iter()
                    .map(|&from| ends(from, to))
                    .collect();
                flows.extend(ring(others).map(|flow| Ends {
                    is_bystander: true,
                    ..flow
                }));
                flows
            }
            Self::Permutation => ring(&all).collect(),
            // The first flow of each host goes to the next host, so that they do not all send to the same one first.
            Self::AllToAll => (0..hosts)
                .flat_map(|from| (1..hosts).map(move |step| ends(from, (from + step) % hosts)))
                .collect(),
        }
    }
}

/// Each to the next; nothing of one alone.
fn ring(hosts: &[usize]) -> impl Iterator<Item = Ends> {
    let next = hosts.iter().cycle().skip(1);
    let pairs = hosts.iter().zip(next).filter(|(from, to)| from != to);
    pairs.map(|(&from, &to)| ends(from, to))
}

const fn ends(from: usize, to: usize) -> Ends {
    Ends {
        from,
        to,
        is_bystander: false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// How many flows each host sends and receives.
    fn counts(flows: &[Ends]) -> BTreeMap<usize, [usize; 2]> {
        let mut counts = BTreeMap::<_, [usize; 2]>::new();
        for flow in flows {
            assert_ne!(flow.from, flow.to);
            counts.entry(flow.from).or_default()[0] += 1;
            counts.entry(flow.to).or_default()[1] += 1;
        }
        counts
    }

    #[test]
    fn flows_are_as_the_pattern_says() {
        for seed in 0..20 {
            let flows = |pattern: Pattern| pattern.flows(16, &mut Draw::new(seed));
            let permutation = counts(&flows(Pattern::Permutation));
            assert!(permutation.len() == 16 && permutation.values().all(|one| *one == [1, 1]));
            let all = counts(&flows(Pattern::AllToAll));
            assert!(all.len() == 16 && all.values().all(|one| *one == [15, 15]));
            let incast = flows(Pattern::Incast(8));
            let (others, theirs): (Vec<_>, Vec<_>) =
                incast.iter().copied().partition(|flow| flow.is_bystander);
            assert_eq!((theirs.len(), others.len()), (8, 7));
            assert!(theirs.iter().all(|flow| flow.to == theirs[0].to));
            let (theirs, others) = (counts(&theirs), counts(&others));
            assert!(others.keys().all(|host| !theirs.contains_key(host)));
            assert_eq!(flows(Pattern::Incast(100)).len(), 15, "all to one");
        }
    }
}
