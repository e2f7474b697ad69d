//! What the benches by Criterion have in common: times that let all of them end within ten minutes, and the plots.

use std::time::Duration;

use criterion::{
    AxisScale, BenchmarkGroup, BenchmarkId, Criterion, PlotConfiguration, PlottingBackend,
    Throughput, measurement::WallTime,
};
use verbs_benches::timed;

/// The settings of every group.
pub(crate) fn settings() -> Criterion {
    Criterion::default()
        .plotting_backend(PlottingBackend::Plotters)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(10)
        .nresamples(5_000)
}

/// A group whose parameters are compared on logarithmic axes.
pub(crate) fn group<'c>(c: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = c.benchmark_group(name);
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic));
    group
}

/// Measures an operation that repeats itself so often as it is told.
pub(crate) fn repeats(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    throughput: Throughput,
    mut operation: impl FnMut(u64),
) {
    group.throughput(throughput);
    group.bench_function(id, |b| {
        b.iter_custom(|times| timed(|| operation(times)));
    });
}
