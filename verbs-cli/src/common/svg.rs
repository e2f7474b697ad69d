//! Pictures in files, as SVG.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

/// What is drawn on.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes a picture of that width and height in pixels, which `draw` draws on white.
pub(crate) fn write(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<(), SvgError> {
    let error = |why: &dyn Error| SvgError {
        path: path.into(),
        why: why.to_string(),
    };
    let svg = drawn(size, draw).map_err(|why| error(&*why))?;
    fs::write(path, svg).map_err(|why| error(&why))
}

fn drawn(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(svg)
}

/// The path of a picture, and why it cannot be drawn or written; for a sentence that says which was tried.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub(crate) struct SvgError {
    path: PathBuf,
    why: String,
}
