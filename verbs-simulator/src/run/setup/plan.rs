//! The properties of a run as a whole, drawn from the seed.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use hca_sim::command::{CommandConfig, CommandOrder, CommandTime};

use crate::run::{Mode, Options};
use crate::{Draw, LinkConfig, Ppm, StreamConfig};

/// The most nodes of one run.
pub(crate) const NODES_MAX: usize = 16;

/// The properties of a run as a whole, drawn from the seed; printed first.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How messages are carried.
    pub mode: Mode,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many sessions use them at a time.
    pub sessions: usize,
    /// The properties of all directions between ports while there are faults.
    pub link_faults: LinkConfig,
    /// The properties of all streams while there are faults.
    pub stream_faults: StreamConfig,
    /// Connections over streams are peer-to-peer ones.
    pub peer_to_peer: bool,
    /// Ports go down and come up again.
    pub flaps: bool,
    /// Devices are removed and replaced.
    pub removals: bool,
    /// Verbs fail, are lost, or are held back.
    pub verb_faults: bool,
    /// An attacker on the network sends unwanted packets.
    pub hostile: bool,
    /// How long commands take.
    pub commands: CommandConfig,
}

impl Plan {
    pub(crate) fn draw(options: &Options, draw: &mut Draw) -> Self {
        let half = Ppm::percent(50);
        let drawn = if draw.chance(Ppm::percent(75)) {
            Mode::Packets
        } else {
            Mode::Direct
        };
        // Draws of their own, so that runs without streams are what they were before there were any.
        let mut own = Draw::new(options.seed.rotate_left(32));
        let mode = options.mode.unwrap_or(drawn);
        let nodes = draw.within(2..=4) as usize;
        let sessions = draw.within(1..=3) as usize;
        let link_faults = link_faults(draw);
        Self {
            mode,
            nodes: options.nodes.unwrap_or(nodes).clamp(2, NODES_MAX),
            sessions,
            link_faults,
            stream_faults: stream_faults(&mut own),
            peer_to_peer: own.chance(half),
            // A stream outlives what happens to its port's carrier.
            flaps: draw.chance(half) && mode != Mode::Streams,
            removals: draw.chance(half),
            verb_faults: draw.chance(half),
            hostile: draw.chance(half),
            commands: commands(draw),
        }
    }

    /// The same without faults, and with one session at a time.
    pub(crate) fn without_faults(self) -> Self {
        Self {
            sessions: 1,
            link_faults: LinkConfig::default(),
            stream_faults: StreamConfig::default(),
            flaps: false,
            removals: false,
            verb_faults: false,
            hostile: false,
            ..self
        }
    }

    /// Whether anything can make a request go unanswered.
    pub(crate) fn loses(&self) -> bool {
        let lossy = self.mode == Mode::Packets
            && (self.link_faults.loses() || self.link_faults.queue < LinkConfig::default().queue);
        let breaks = self.mode == Mode::Streams && self.stream_faults.breaks();
        lossy || breaks || self.flaps || self.removals
    }
}

/// The properties of directions between ports; each kind of fault in every other run.
fn link_faults(draw: &mut Draw) -> LinkConfig {
    let half = Ppm::percent(50);
    let mut odds = |max: u64| {
        let odds = Ppm(draw.within(1_000..=max) as u32);
        if draw.chance(half) { odds } else { Ppm::NEVER }
    };
    let (loss, duplication) = (odds(60_000), odds(100_000));
    let (reordering, corruption) = (odds(100_000), odds(40_000));
    let small = draw.chance(Ppm::percent(33));
    let queue = draw.within(5_000..=12_000) as usize;
    LinkConfig {
        latency: draw.duration(Duration::from_nanos(300)..=Duration::from_micros(30)),
        rate: *draw.pick(&[1_000_000_000, 5_000_000_000, 12_500_000_000, 50_000_000_000]),
        queue: if small {
            queue
        } else {
            LinkConfig::default().queue
        },
        lossless: draw.chance(Ppm::percent(25)),
        delay: draw.duration(Duration::from_micros(1)..=Duration::from_micros(100)),
        marking: draw.chance(half),
        loss,
        duplication,
        reordering,
        corruption,
    }
}

/// The properties of streams; each kind of fault in every other run.
fn stream_faults(draw: &mut Draw) -> StreamConfig {
    let half = Ppm::percent(50);
    let mut odds = |max: u64| {
        let odds = Ppm(draw.within(100..=max) as u32);
        if draw.chance(half) { odds } else { Ppm::NEVER }
    };
    let (delays, resets, half_closes) = (odds(100_000), odds(3_000), odds(3_000));
    StreamConfig {
        latency: draw.duration(Duration::from_nanos(300)..=Duration::from_micros(30)),
        rate: *draw.pick(&[1_000_000_000, 5_000_000_000, 12_500_000_000]),
        window: *draw.pick(&[700, 4 << 10, 64 << 10, 1 << 20]),
        segment: *draw.pick(&[128, 536, 1448, 8948, 65_483]),
        splits: draw.chance(half),
        delays,
        delay: draw.duration(Duration::from_micros(1)..=Duration::from_micros(100)),
        resets,
        half_closes,
    }
}

fn commands(draw: &mut Draw) -> CommandConfig {
    let max = draw.duration(Duration::from_micros(1)..=Duration::from_micros(50));
    let time = match draw.below(3) {
        0 => CommandTime::Zero,
        1 => CommandTime::Fixed(max),
        _ => {
            let min = Duration::ZERO;
            CommandTime::Drawn { min, max }
        }
    };
    let slots = *draw.pick(&[1, 2, 8, u32::MAX]);
    let in_order = draw.chance(Ppm::percent(50));
    CommandConfig {
        slots: NonZeroU32::new(slots).unwrap_or(NonZeroU32::MAX),
        time,
        order: if in_order {
            CommandOrder::InOrder
        } else {
            CommandOrder::OutOfOrder
        },
        seed: draw.number(),
        datagrams: false,
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Packets => "packets",
            Mode::Direct => "direct placement",
            Mode::Streams => "streams",
        };
        write!(
            f,
            "{} nodes, {} sessions, {mode}",
            self.nodes, self.sessions
        )?;
        if self.mode == Mode::Packets {
            let link = &self.link_faults;
            write!(f, "; {:?} at {} MB/s", link.latency, link.rate / 1_000_000)?;
            let odds = [
                (link.loss, "loss"),
                (link.duplication, "duplication"),
                (link.reordering, "reordering"),
                (link.corruption, "corruption"),
            ];
            for (Ppm(ppm), name) in odds.into_iter().filter(|&(odds, _)| odds > Ppm::NEVER) {
                write!(f, ", {name} {}.{} %", ppm / 10_000, ppm / 1_000 % 10)?;
            }
            if link.queue < LinkConfig::default().queue {
                write!(f, ", queues of {} bytes", link.queue)?;
            }
            if link.lossless {
                f.write_str(", lossless")?;
            }
        }
        if self.mode == Mode::Streams {
            write!(f, "; {}", self.stream_faults)?;
        }
        let happens = [
            (self.flaps, "ports flap"),
            (self.removals, "devices go"),
            (self.verb_faults, "verbs fail"),
            (
                self.hostile && self.mode != Mode::Direct,
                "somebody is hostile",
            ),
        ];
        for (_, what) in happens.into_iter().filter(|&(happens, _)| happens) {
            write!(f, "; {what}")?;
        }
        write!(
            f,
            "; commands {:?} on {} slots",
            self.commands.time, self.commands.slots
        )
    }
}
