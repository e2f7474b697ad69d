//! What control verbs in one thread do to messages in another: the 99th percentile of a message with
//! and without them.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, thread};
use verbs_core::{Access, Memory, QpInit};

use super::Stage;
use super::bed::{Bed, DEPTH, End, pass};
use super::error::BenchError;
use super::machine::{Machine, preemptions};
use super::method::{Figures, KEPT_MIN, Sample};
use super::table::{Beside, Row};

/// Control verbs in a second.
const RATE: u32 = 100_000;

/// Verbs of one turn: a domain, a completion queue, two queue pairs and a region are made and
/// destroyed, and a queue pair is asked for its state.
const TURN: u32 = 11;

/// Messages of a repetition: 200 of them are above the percentile.
const MESSAGES: usize = 20_000;

/// Pairs of repetitions at most.
const PAIRS_MAX: usize = 201;

/// Bytes of a message.
const BYTES: usize = 8;

/// Measures the messages of one thread in turns: quiet, and with verbs in another.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let bed = Bed::new()?;
    let [mut here, mut there] = bed.ends(DEPTH, 2 * BYTES)?;
    let load = Load::default();
    let pairs = thread::scope(|scope| {
        let controller = scope.spawn(|| load.drive(&bed, &stage.machine));
        let pairs = pairs(stage, &load, &mut here, &mut there);
        load.is_over.store(true, Relaxed);
        let driven = controller.join().unwrap_or(Err(BenchError::Stalled {
            what: "control verbs",
            seconds: 0,
        }));
        driven.and(pairs)
    })?;
    let [quiet, loaded] = pairs.map(|samples| Figures::of(&samples));
    let name = "p99 of a SEND, 100,000 control verbs/s beside";
    let beside = Beside::new("p99 without", quiet, loaded);
    let row = Row::new(stage.bench, name, loaded).bytes(BYTES);
    Ok(vec![row.threads(2).beside(beside)])
}

/// Repetitions without and with load, in turns.
fn pairs(
    stage: &Stage,
    load: &Load,
    here: &mut End,
    there: &mut End,
) -> Result<[Vec<Sample>; 2], BenchError> {
    let mut samples = [Vec::new(), Vec::new()];
    let mut times = vec![0; MESSAGES];
    messages(here, there, &mut times)?;
    let started = Instant::now();
    for pair in 0..PAIRS_MAX {
        if pair >= KEPT_MIN && stage.method.is_past(started.elapsed()) {
            break;
        }
        for (samples, is_loaded) in samples.iter_mut().zip([false, true]) {
            load.is_on.store(is_loaded, Relaxed);
            let (before, verbs, began) = (preemptions(), load.verbs.load(Relaxed), Instant::now());
            messages(here, there, &mut times)?;
            let made = load.verbs.load(Relaxed) - verbs;
            // A controller that was off its processor loaded nothing.
            let wanted = began.elapsed().as_secs_f64() * f64::from(RATE);
            let is_loaded_enough = !is_loaded || made as f64 >= 0.9 * wanted - f64::from(TURN);
            times.sort_unstable();
            samples.push(Sample {
                ns: times[MESSAGES * 99 / 100] as f64,
                quiet: preemptions() == before && is_loaded_enough,
            });
        }
    }
    Ok(samples)
}

/// Sends so many messages one by one, and notes the nanoseconds of each: both posts and both polls.
fn messages(here: &mut End, there: &mut End, times: &mut [u64]) -> Result<(), BenchError> {
    let (from, into) = (here.mr.slice(0..BYTES), there.mr.slice(BYTES..2 * BYTES));
    for time in times {
        let began = Instant::now();
        pass(&mut there.recv, &mut here.send, from, into)?;
        here.sent.take(1)?;
        there.received.take(1)?;
        *time = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }
    Ok(())
}

/// A thread that issues control verbs.
#[derive(Debug, Default)]
struct Load {
    is_on: AtomicBool,
    is_over: AtomicBool,
    /// Verbs so far.
    verbs: AtomicU64,
}

impl Load {
    /// Issues verbs while it is on, as many in a second as it should. Blocks until it is over.
    fn drive(&self, bed: &Bed, machine: &Machine) -> Result<(), BenchError> {
        machine.pin(1);
        let turn = Duration::from_secs(1) * TURN / RATE;
        let memory = Memory::alloc(1 << 12).map_err(BenchError::verb("allocate memory"))?;
        let memory = Arc::new(memory);
        let mut due = Instant::now();
        while !self.is_over.load(Relaxed) {
            if !self.is_on.load(Relaxed) || Instant::now() < due {
                if !self.is_on.load(Relaxed) {
                    due = Instant::now();
                }
                thread::yield_now();
                continue;
            }
            due += turn;
            block_on(verbs(bed, &memory))?;
            self.verbs.fetch_add(TURN.into(), Relaxed);
        }
        Ok(())
    }
}

/// One turn of verbs.
async fn verbs(bed: &Bed, memory: &Arc<Memory>) -> Result<(), BenchError> {
    let failed = BenchError::verb("issue control verbs beside messages");
    let pd = bed.device.alloc_pd().await.map_err(&failed)?;
    let cq = bed.device.create_cq(DEPTH).await.map_err(&failed)?;
    let a = pd.create_qp(QpInit::rc(&cq, &cq)).await.map_err(&failed)?;
    let b = pd.create_qp(QpInit::rc(&cq, &cq)).await.map_err(&failed)?;
    let region = pd.register(Arc::clone(memory), Access::LOCAL_WRITE).await;
    let region = region.map_err(&failed)?;
    a.query().await.map_err(&failed)?;
    let gone = region.dereg().await;
    gone.map_err(|refused| failed(refused.error))?;
    for qp in [a, b] {
        let gone = qp.destroy().await;
        gone.map_err(|refused| failed(refused.error))?;
    }
    let gone = cq.destroy().await;
    gone.map_err(|refused| failed(refused.error))?;
    let gone = pd.dealloc().await;
    gone.map_err(|refused| failed(refused.error))
}
