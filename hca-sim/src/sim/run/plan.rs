//! What the seed decides about a run as a whole.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::hca::command::{CommandConfig, CommandOrder, CommandTime};
use crate::sim::run::{Mode, Options};
use crate::sim::{Draw, LinkConfig, Ppm};

/// Nodes of one run at most.
pub(crate) const NODES_MAX: usize = 16;

/// What the seed decides about a run as a whole; printed first.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How messages travel.
    pub mode: Mode,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many sessions use them at a time.
    pub sessions: usize,
    /// What the ways are like while there are faults.
    pub weather: LinkConfig,
    /// Ports go down and come back.
    pub flaps: bool,
    /// Devices are removed and come back.
    pub removals: bool,
    /// Verbs fail, are lost, or are held back.
    pub verb_faults: bool,
    /// Somebody on the network sends what nobody wants.
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
        let nodes = draw.within(2..=4) as usize;
        let sessions = draw.within(1..=3) as usize;
        let weather = weather(draw);
        Self {
            mode: options.mode.unwrap_or(drawn),
            nodes: options.nodes.unwrap_or(nodes).clamp(2, NODES_MAX),
            sessions,
            weather,
            flaps: draw.chance(half),
            removals: draw.chance(half),
            verb_faults: draw.chance(half),
            hostile: draw.chance(half),
            commands: commands(draw),
        }
    }

    /// The same with nothing going wrong, and one session at a time.
    pub(crate) fn without_faults(self) -> Self {
        Self {
            sessions: 1,
            weather: LinkConfig::default(),
            flaps: false,
            removals: false,
            verb_faults: false,
            hostile: false,
            ..self
        }
    }

    /// Whether anything can make a request go unanswered.
    pub(crate) fn loses(&self) -> bool {
        let weather = self.mode == Mode::Packets
            && (self.weather.loses() || self.weather.queue < LinkConfig::default().queue);
        weather || self.flaps || self.removals
    }
}

/// What the ways are like; each kind of fault in every other run.
fn weather(draw: &mut Draw) -> LinkConfig {
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
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Packets => "packets",
            Mode::Direct => "direct placement",
        };
        write!(
            f,
            "{} nodes, {} sessions, {mode}",
            self.nodes, self.sessions
        )?;
        if self.mode == Mode::Packets {
            let way = &self.weather;
            write!(f, "; {:?} at {} MB/s", way.latency, way.rate / 1_000_000)?;
            let odds = [
                (way.loss, "loss"),
                (way.duplication, "duplication"),
                (way.reordering, "reordering"),
                (way.corruption, "corruption"),
            ];
            for (Ppm(ppm), name) in odds.into_iter().filter(|&(odds, _)| odds > Ppm::NEVER) {
                write!(f, ", {name} {}.{} %", ppm / 10_000, ppm / 1_000 % 10)?;
            }
            if way.queue < LinkConfig::default().queue {
                write!(f, ", queues of {} bytes", way.queue)?;
            }
            if way.lossless {
                f.write_str(", lossless")?;
            }
        }
        let happens = [
            (self.flaps, "ports flap"),
            (self.removals, "devices go"),
            (self.verb_faults, "verbs fail"),
            (
                self.hostile && self.mode == Mode::Packets,
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
