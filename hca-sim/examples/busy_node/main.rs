//! A busy node must not look dead to its subnet manager: two models of answering, in virtual time and on this machine.
//!
//! `cargo run --release --example busy_node` prints both tables.

mod model;
mod wall;

use std::time::Duration;

use model::{Load, Model, Node, Outcome};

fn main() {
    println!("virtual time, 30 s, 100 questions a second, budget 3 x 200 ms");
    header();
    for (name, percent, storm) in [
        ("idle", 1, 1),
        ("handlers 80 %, 120 connections/s", 80, 120),
        ("handlers 90 %, 240 connections/s", 90, 240),
        ("handlers 99 %, 300 connections/s", 99, 300),
    ] {
        let load = Load {
            handlers_percent: percent,
            connections_per_s: storm,
            ..Load::BUSY
        };
        for model in [Model::Inline, Model::Worker] {
            row(name, model, &Node::run(model, load, 7));
        }
    }
    println!("\nthis machine, 5 s, with threads");
    header();
    for model in [Model::Inline, Model::Worker] {
        let outcome = wall::run(model, Duration::from_secs(5));
        row("handlers 90 %, worker 96 %", model, &outcome);
    }
}

fn header() {
    println!(
        "{:34} {:7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "load", "model", "asked", "answered", "hand-offs", "p50", "p99", "max", "given up"
    );
}

fn row(name: &str, model: Model, outcome: &Outcome) {
    let time = |percent| format!("{:.3} ms", outcome.percentile(percent).as_secs_f64() * 1e3);
    println!(
        "{name:34} {:7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        format!("{model:?}").to_lowercase(),
        outcome.asked,
        outcome.answered,
        outcome.handoffs,
        time(50),
        time(99),
        time(100),
        outcome.given_up
    );
}
