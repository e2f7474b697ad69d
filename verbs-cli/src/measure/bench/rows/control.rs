//! Control verbs, awaited one after another in one thread.

use futures::executor::block_on;
use hca_sim::connect;
use verbs_core::sync::Arc;
use verbs_core::{Access, QpInit};

use super::Stage;
use super::bed::{Bed, DEPTH, touched};
use super::error::BenchError;
use super::method::{Method, Subject};
use super::table::{Beside, Row};

/// Bytes of the two regions that are registered: the price is to be the same.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 20;

/// Verbs of a queue pair's life: two are created, taken through INIT and RTR to RTS, and destroyed.
const PAIR_VERBS: u64 = 10;

/// Measures queries, the life of two queue pairs, and registration.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(2);
    let mut rows = queue_pairs(stage, method)?;
    rows.extend(registration(stage, method)?);
    Ok(rows)
}

fn queue_pairs(stage: &Stage, method: Method) -> Result<Vec<Row>, BenchError> {
    let bed = Bed::new()?;
    let cq = bed.cq(DEPTH)?;
    let init = || QpInit::rc(&cq, &cq);
    let [line, _peer] = bed.lines([init(), init()])?;
    let qp = line.into_qp();
    let query_device = |times: u64| {
        block_on(async {
            for _ in 0..times {
                let attr = bed.device.query().await;
                attr.map_err(BenchError::verb("query the device"))?;
            }
            Ok(())
        })
    };
    let query_qp = |times: u64| {
        block_on(async {
            for _ in 0..times {
                let info = qp.query().await;
                info.map_err(BenchError::verb("query a queue pair"))?;
            }
            Ok(())
        })
    };
    let pair = |times: u64| block_on(lives(&bed, init(), times));
    let figures = method.measure(&mut [
        Subject::alone(1, query_device),
        Subject::alone(1, query_qp),
        Subject::alone(PAIR_VERBS, pair),
    ])?;
    let names = [
        "query device",
        "query QP",
        "create+connect+destroy 2 QPs, each of 10 verbs",
    ];
    let rows = names.iter().zip(figures);
    Ok(rows
        .map(|(name, figures)| Row::new(stage.bench, name, figures))
        .collect())
}

/// Two queue pairs are made, connected and destroyed, so many times.
async fn lives(bed: &Bed, init: QpInit<'_>, times: u64) -> Result<(), BenchError> {
    let created = BenchError::verb("create a queue pair");
    let destroyed = BenchError::verb("destroy a queue pair");
    for _ in 0..times {
        let mut a = bed.pd.create_qp(init).await.map_err(&created)?;
        let mut b = bed.pd.create_qp(init).await.map_err(&created)?;
        connect(&mut a, &mut b)
            .await
            .map_err(BenchError::verb("connect two queue pairs"))?;
        for qp in [a, b] {
            let gone = qp.destroy().await;
            gone.map_err(|refused| destroyed(refused.error))?;
        }
    }
    Ok(())
}

fn registration(stage: &Stage, method: Method) -> Result<Vec<Row>, BenchError> {
    let bed = Bed::new()?;
    let memory = |bytes| {
        touched(bytes)
            .map(Arc::new)
            .map_err(BenchError::verb("allocate memory to register"))
    };
    let regions = [memory(SMALL)?, memory(LARGE)?];
    let mut subjects = regions.each_ref().map(|memory| {
        Subject::alone(2, |times: u64| {
            block_on(async {
                for _ in 0..times {
                    let rights = Access::LOCAL_WRITE;
                    let mr = bed.pd.register(Arc::clone(memory), rights).await;
                    let mr = mr.map_err(BenchError::verb("register memory"))?;
                    let gone = mr.dereg().await;
                    gone.map_err(|refused| BenchError::verb("deregister")(refused.error))?;
                }
                Ok(())
            })
        })
    });
    let figures = method.measure(&mut subjects)?;
    let row = |index: usize, bytes: usize| {
        Row::new(stage.bench, "register+deregister, each", figures[index]).bytes(bytes)
    };
    let beside = Beside::new("4 KiB", figures[0], figures[1]);
    Ok(vec![row(0, SMALL), row(1, LARGE).beside(beside)])
}
