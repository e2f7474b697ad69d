//! Our end of the peer suite of SRP: what a disk's user does, and checks.
//!
//!     srp_peer ADDRESS ROLE TARGET [N]
//!
//! ADDRESS is ours, TARGET what Linux logs in with. ROLE:
//! - `verify`: inquiry, capacity, then N MiB are written, read and compared, by each mechanism; logout.
//! - `hold`: N commands of 64 KiB are under way all the time, until the target is gone; each has to end
//!   exactly once, and the session is to come back when the target does.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::try_join_all;
use ulp_srp::initiator::{
    Command, Data, Event, Initiator, Mechanism, Options, ScsiError, Session, Target, transfer_cdb,
};
use ulp_srp::iu::{Cdb, Lun, PortId, TaskAttribute};
use verbs_core::sync::Arc;
use verbs_core::{Device, Extent, Guid, Memory};

type Failed = Box<dyn Error>;

/// Bytes of one command, in fragments that lie apart.
const COMMAND: usize = 256 << 10;
const FRAGMENT: usize = 16 << 10;
/// Commands under way.
const DEPTH: usize = 8;
/// How long a target may be away.
const PATIENCE: Duration = Duration::from_secs(25);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, role, target, count] = &arguments[..] else {
        eprintln!("usage: srp_peer ADDRESS ROLE TARGET N");
        return ExitCode::from(2);
    };
    match run(address, role, target, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str, role: &str, target: &str, count: &str) -> Result<(), Failed> {
    let address: IpAddr = address.parse()?;
    let target: Target = target.parse()?;
    let count: usize = count.parse()?;
    let link = hca_sim::Udp::bind(&[address])?;
    let hca = hca_sim::Hca::over(link).build();
    block_on(async {
        let device = Arc::new(hca.open().await?);
        match role {
            "verify" => verify(&device, &target, count).await,
            "hold" => hold(&device, &target, count).await,
            other => Err(format!("there is no role {other}").into()),
        }
    })
}

fn options(mechanism: Mechanism) -> Options {
    Options {
        mechanism,
        queue_depth: DEPTH as u16,
        ..Options::new(PortId {
            extension: 1,
            guid: Guid(0x0200_00ff_fe5e_7b01),
        })
    }
}

async fn verify(device: &Arc<Device>, target: &Target, mib: usize) -> Result<(), Failed> {
    let ways = [
        Mechanism::FastReg,
        Mechanism::Fmr,
        Mechanism::Request,
        Mechanism::Published,
    ];
    for (pass, mechanism) in (1..).zip(ways) {
        let session = Initiator::new(device, options(mechanism))
            .login(target.clone())
            .await?;
        let lun = *session.luns().await?.first().ok_or("no logical unit")?;
        let inquiry = session.inquiry(lun).await?;
        let capacity = session.capacity(lun).await?;
        println!(
            "{} {}: {} bytes in blocks of {}",
            inquiry.vendor,
            inquiry.product,
            capacity.bytes(),
            capacity.block_len
        );
        // The whole by the first, a part of it by the others.
        let mib = if pass == 1 { mib } else { mib.div_ceil(16) };
        let bytes = (mib << 20).min(usize::try_from(capacity.bytes())?);
        let begun = Instant::now();
        write_and_read(&session, lun, capacity.block_len, bytes, pass).await?;
        session.synchronize(lun).await?;
        let (_, formats) = session.counters();
        println!(
            "{mechanism:?}: {} MiB written, read and the same in {:.1} s; {formats:?}",
            bytes >> 20,
            begun.elapsed().as_secs_f64()
        );
        session.logout().await;
    }
    println!("logged out");
    Ok(())
}

/// Each of several at a time takes every so many commands' share of the disk.
async fn write_and_read(
    session: &Session,
    lun: Lun,
    block: u32,
    bytes: usize,
    pass: u64,
) -> Result<(), Failed> {
    let workers = (0..DEPTH).map(|worker| async move {
        let memory = Arc::new(Memory::alloc(2 * COMMAND)?);
        session.publish(&memory).await?;
        let fragment = |number| Extent {
            memory: &memory,
            offset: 2 * number * FRAGMENT,
            len: FRAGMENT as u32,
        };
        let list: Vec<_> = (0..COMMAND / FRAGMENT).map(fragment).collect();
        for place in (worker * COMMAND..bytes).step_by(DEPTH * COMMAND) {
            let lba = place as u64 / u64::from(block);
            let blocks = COMMAND as u32 / block;
            for (number, extent) in list.iter().enumerate() {
                let content = content(pass, place + number * FRAGMENT);
                memory.write(extent.offset, &content)?;
            }
            session.write(lun, lba, blocks, &list).await?;
            memory.fill(0..2 * COMMAND, 0xee)?;
            session.read(lun, lba, blocks, &list).await?;
            let mut came = vec![0; FRAGMENT];
            for (number, extent) in list.iter().enumerate() {
                memory.read(extent.offset, &mut came)?;
                if came != content(pass, place + number * FRAGMENT) {
                    return Err(format!("other bytes were read at {place}").into());
                }
            }
        }
        Ok::<(), Failed>(())
    });
    try_join_all(workers).await.map(drop)
}

/// What stands at a place of the disk.
fn content(pass: u64, place: usize) -> Vec<u8> {
    let mut state = pass << 40 | place as u64 | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    (0..FRAGMENT / 8).flat_map(word).collect()
}

async fn hold(device: &Arc<Device>, target: &Target, count: usize) -> Result<(), Failed> {
    let is_back = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&is_back);
    let mut patient = options(Mechanism::FastReg);
    patient.reconnect_timeout = Some(Duration::from_secs(120));
    patient.backoff_max = Duration::from_millis(500);
    let initiator = Initiator::new(device, patient).on_event(move |event| {
        println!("{event:?}");
        back.fetch_or(matches!(event, Event::Restored { .. }), SeqCst);
    });
    let session = initiator.login(target.clone()).await?;
    session.test_unit_ready(Lun(0)).await?;
    println!("holding");
    let (begun, ended) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let failed = Arc::new(AtomicU64::new(0));
    let twice = Arc::new(AtomicU32::new(0));
    let start = Instant::now();
    let workers = (0..count).map(|worker| {
        let (session, begun) = (&session, &begun);
        let (ended, failed, twice) = (&ended, &failed, &twice);
        let is_back = &is_back;
        async move {
            let memory = Arc::new(Memory::alloc(64 << 10)?);
            let list = [Extent {
                memory: &memory,
                offset: 0,
                len: 64 << 10,
            }];
            let cdb = transfer_cdb(false, worker as u64 * 128, 128);
            let command = Command {
                cdb: Cdb::new(&cdb)?,
                lun: Lun(0),
                attribute: TaskAttribute::SIMPLE,
                data: Data::In(&list),
            };
            while !is_back.load(SeqCst) && start.elapsed() < PATIENCE {
                let (tell, told) = oneshot::channel();
                let once = AtomicBool::new(false);
                let (ended, twice) = (Arc::clone(ended), Arc::clone(twice));
                let sent = session.command(&command, move |outcome| {
                    ended.fetch_add(1, SeqCst);
                    twice.fetch_add(u32::from(once.swap(true, SeqCst)), SeqCst);
                    // The receiver waits for it.
                    let _ = tell.send(outcome);
                });
                if sent.is_err() {
                    // The channel is being made again; this thread has nothing else to do.
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                begun.fetch_add(1, SeqCst);
                if told.await?.is_err() {
                    failed.fetch_add(1, SeqCst);
                }
            }
            Ok::<(), Failed>(())
        }
    });
    try_join_all(workers).await?;
    if twice.load(SeqCst) != 0 || !is_back.load(SeqCst) {
        return Err("a command ended twice, or the target did not come back".into());
    }
    judge(begun.into_inner(), ended.load(SeqCst), failed.load(SeqCst))?;
    works_again(&session).await?;
    session.logout().await;
    Ok(())
}

/// Whether the target answers, whatever it says.
async fn works_again(session: &Session) -> Result<(), Failed> {
    match session.test_unit_ready(Lun(0)).await {
        Ok(()) | Err(ScsiError::Status(_)) => println!("the session works again"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Whether every command ended, and the loss was one.
fn judge(begun: u64, ended: u64, failed: u64) -> Result<(), Failed> {
    println!("{begun} commands begun, {ended} ended, {failed} of them by the loss");
    if begun != ended {
        return Err("commands did not end exactly once".into());
    }
    if failed == 0 {
        return Err("no command was under way when the target went".into());
    }
    Ok(())
}
