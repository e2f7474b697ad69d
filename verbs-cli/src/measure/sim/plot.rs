//! A picture of a congested switch: its queue, and below it the rates of the connections, over time.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use verbs_simulator::{Bottleneck, Sample};

use super::SimError;
use crate::svg::{self, Area};

/// Pixels.
const SIZE: (u32, u32) = (900, 680);
const QUEUE_HEIGHT: i32 = 320;

/// How many moments of a run are drawn.
const MOMENTS: u32 = 450;

/// The same run, looked at often enough for a picture.
pub(super) fn observed(bottleneck: Bottleneck) -> Bottleneck {
    let whole = bottleneck.before + bottleneck.time;
    Bottleneck {
        sampling: Some(whole / MOMENTS),
        ..bottleneck
    }
}

/// Draws the course of a run as an SVG picture.
pub(super) fn draw(path: &Path, run: &Bottleneck, course: &[Sample]) -> Result<(), SimError> {
    svg::write(path, SIZE, |area| panels(area, run, course)).map_err(SimError::Plot)
}

/// Points of a line.
type Points = Vec<(f64, f64)>;

fn panels(area: &Area<'_>, run: &Bottleneck, course: &[Sample]) -> Result<(), Box<dyn Error>> {
    let (upper, lower) = area.split_vertically(QUEUE_HEIGHT);
    let whole = millis(run.before + run.time);
    let line = |of: &dyn Fn(&Sample) -> f64| -> Points {
        let points = course.iter().map(|sample| (millis(sample.at), of(sample)));
        points.collect()
    };
    let queue = line(&|sample| sample.waiting as f64 / 1e3);
    let longest = queue.iter().fold(1.0_f64, |most, (_, kb)| most.max(*kb));
    let caption = format!("Queue of the switch, seed {}", run.seed);
    panel(&upper, &caption, "kB", (whole, longest), &[queue])?;

    // What nothing limits sends as fast as its line does.
    let line_rate = run
        .congestion
        .map_or(run.queue.rate, |dcqcn| dcqcn.line_rate);
    let rates: Vec<Points> = (0..run.flows)
        .map(|flow| {
            line(&|sample| {
                let limit = sample.rates.get(flow).copied().flatten();
                gigabits(limit.unwrap_or(line_rate))
            })
        })
        .collect();
    let caption = format!("Rates to which {} connections are limited", run.flows);
    panel(
        &lower,
        &caption,
        "Gbit/s",
        (whole, gigabits(line_rate)),
        &rates,
    )
}

/// A chart over time, with a line for each of `lines`.
fn panel(
    area: &Area<'_>,
    caption: &str,
    unit: &str,
    (whole, most): (f64, f64),
    lines: &[Points],
) -> Result<(), Box<dyn Error>> {
    let axis = |end: f64| -> Range<f64> { 0.0..end * 1.05 };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..whole, axis(most))?;
    chart.configure_mesh().x_desc("ms").y_desc(unit).draw()?;
    for (number, points) in lines.iter().enumerate() {
        let color = Palette99::pick(number).stroke_width(1);
        chart.draw_series(LineSeries::new(points.iter().copied(), color))?;
    }
    Ok(())
}

fn millis(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn gigabits(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e9
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goal: a picture has two charts and a line for each connection, also of a run of which nothing was seen.
    #[test]
    fn pictures_have_the_queue_and_every_rate() {
        let run = Bottleneck {
            flows: 3,
            ..Bottleneck::new(1)
        };
        let sample = |at: u64| Sample {
            at: Duration::from_millis(at),
            waiting: 1000 * at as usize,
            rates: vec![None, Some(125_000_000), Some(1_000_000 * at)],
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.svg");
        for (course, lines) in [((1..150).map(sample).collect(), 4), (Vec::new(), 0)] {
            draw(&path, &run, &course).expect("a picture");
            let text = std::fs::read_to_string(&path).expect("there");
            // Axes and grids are lines of two points.
            let curves = text
                .lines()
                .filter(|line| line.starts_with("<polyline") && line.matches(',').count() > 100);
            assert_eq!(curves.count(), lines, "{text}");
            for word in ["Queue of the switch, seed 1", "Gbit/s", "ms"] {
                assert!(text.contains(word), "{word}");
            }
        }
        let nowhere = draw(Path::new("/nowhere/run.svg"), &run, &[]);
        assert!(matches!(nowhere, Err(SimError::Plot(_))));
    }
}
