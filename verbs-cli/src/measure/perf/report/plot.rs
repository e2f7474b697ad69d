//! A picture of rates or latencies by size.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use super::numbers::{Bandwidth, Latency};
use crate::perf::error::PerfError;
use crate::svg::{self, Area};

/// Pixels.
const SIZE: (u32, u32) = (900, 560);

/// A line of a picture: what it is, and its points.
struct Curve {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws the rates of all sizes.
pub(crate) fn bandwidths(path: &Path, title: &str, all: &[Bandwidth]) -> Result<(), PerfError> {
    let curve = |name, color, of: fn(&Bandwidth) -> f64| Curve {
        name,
        color,
        points: all.iter().map(|one| (one.size as f64, of(one))).collect(),
    };
    let curves = [
        curve("average", BLUE, |one| one.average_mib),
        curve("peak", RED, |one| one.peak_mib),
    ];
    draw(path, title, "MiB/s", &curves)
}

/// Draws the latencies of all sizes.
pub(crate) fn latencies(path: &Path, title: &str, all: &[Latency]) -> Result<(), PerfError> {
    let curve = |name, color, of: fn(&Latency) -> f64| Curve {
        name,
        color,
        points: all.iter().map(|one| (one.size as f64, of(one))).collect(),
    };
    let curves = [
        curve("shortest", GREEN, |one| one.t_min),
        curve("typical", BLUE, |one| one.t_typical),
        curve("99 %", RED, |one| one.p99),
    ];
    draw(path, title, "us", &curves)
}

fn draw(path: &Path, title: &str, unit: &str, curves: &[Curve]) -> Result<(), PerfError> {
    svg::write(path, SIZE, |area| chart(area, title, unit, curves)).map_err(PerfError::Plot)
}

/// Both axes are logarithmic. Values of 0, which were not measured, are left out.
fn chart(area: &Area<'_>, title: &str, unit: &str, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let points = || {
        curves
            .iter()
            .flat_map(|curve| &curve.points)
            .filter(|(_, y)| *y > 0.0)
    };
    let range = |of: fn(&(f64, f64)) -> f64| {
        let all = points().map(of);
        let (low, high) = all.fold((f64::MAX, 0.0_f64), |(low, high), one| {
            (low.min(one), high.max(one))
        });
        match low <= high {
            true => low * 0.9..high * 1.1,
            false => 1.0..10.0,
        }
    };
    let (sizes, values) = (range(|point| point.0), range(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(unit)
        .x_label_formatter(&|bytes| size_text(*bytes))
        .y_label_formatter(&|value| {
            format!("{value:.4}")
                .trim_end_matches('0')
                .trim_end_matches('.')
                .into()
        })
        .draw()?;
    for Curve {
        name,
        color,
        points,
    } in curves
    {
        let measured = points.iter().copied().filter(|(_, y)| *y > 0.0);
        let line = LineSeries::new(measured, color.stroke_width(2)).point_size(3);
        let color = *color;
        chart.draw_series(line)?.label(*name).legend(move |(x, y)| {
            PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
        });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

fn size_text(bytes: f64) -> String {
    match bytes {
        1_048_576.0.. => format!("{}m", bytes / 1_048_576.0),
        1024.0.. => format!("{}k", bytes / 1024.0),
        _ => format!("{bytes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a picture has its lines, names and axes; where nothing was measured it is empty, not an error.
    #[test]
    fn pictures_have_a_line_for_each_curve() {
        let rates: Vec<_> = (1..=23)
            .map(|shift| Bandwidth {
                size: 1 << shift,
                iterations: 1000,
                peak_mib: 0.0,
                average_mib: f64::from(shift) * 100.0,
                rate_m: 0.1,
            })
            .collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rates.svg");
        bandwidths(&path, "RDMA_Write BW Test", &rates).expect("drawn");
        let svg = std::fs::read_to_string(&path).expect("written");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in [
            "average",
            "MiB/s",
            "bytes of a message",
            "RDMA_Write BW Test",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), rates.len());
        latencies(&path, "nothing", &[Latency::default()]).expect("drawn");
        let nowhere = latencies(&folder.path().join("no/folder"), "nowhere", &[]);
        assert!(matches!(nowhere, Err(PerfError::Plot(_))));
    }
}
