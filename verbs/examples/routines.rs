//! The verbs themselves, in the style of a driver: every request has a routine that runs when it has completed, no thread
//! waits, and destroys may come in any order.
//!
//! `cargo run --example routines`

use std::sync::{Arc, Mutex};

use verbs::control::{Access, Device, Memory, Mr, Pd};
use verbs::sim::{Hca, Network};

/// What the driver has; filled by routines.
#[derive(Default)]
struct Adapter {
    device: Mutex<Option<Device>>,
    pd: Mutex<Option<Pd>>,
    region: Mutex<Option<Mr>>,
}

fn put<T>(place: &Mutex<Option<T>>, value: T) {
    *place.lock().expect("no routine panics") = Some(value);
}

fn take<T>(place: &Mutex<Option<T>>) -> T {
    let value = place.lock().expect("no routine panics").take();
    value.expect("it was started")
}

/// Opens the device, and goes on from routine to routine.
fn start(adapter: &Arc<Adapter>, hca: &Arc<Hca>) {
    let adapter = Arc::clone(adapter);
    hca.open().issue(move |opened| match opened {
        Ok(device) => has_device(&adapter, device),
        Err(error) => println!("no device: {error}"),
    });
}

fn has_device(adapter: &Arc<Adapter>, device: Device) {
    let next = Arc::clone(adapter);
    device.alloc_pd().issue(move |allocated| match allocated {
        Ok(pd) => has_pd(&next, pd),
        Err(error) => println!("no protection domain: {error}"),
    });
    put(&adapter.device, device);
}

fn has_pd(adapter: &Arc<Adapter>, pd: Pd) {
    let next = Arc::clone(adapter);
    let memory = Memory::alloc(4096).expect("there is memory");
    pd.register(memory, Access::LOCAL_WRITE)
        .issue(move |registered| match registered {
            Ok(region) => put(&next.region, region),
            Err(error) => println!("no region: {error}"),
        });
    put(&adapter.pd, pd);
}

/// Everything goes, the parent first: its destroy says what holds it, or waits for that.
fn stop(adapter: &Adapter) {
    let pd = take(&adapter.pd);
    let refused = pd.dealloc().wait().expect_err("a region is in it");
    println!("{refused}");
    let pd = refused.handle.expect("a refusal gives the handle back");
    pd.dealloc_when_idle()
        .issue(|gone| println!("protection domain gone: {}", gone.is_ok()));
    let region = take(&adapter.region);
    let device = take(&adapter.device);
    for pending in device.in_flight() {
        println!("waits: {pending}");
    }
    region
        .dereg()
        .issue(|gone| println!("region gone: {}", gone.is_ok()));
    device
        .close()
        .issue(|gone| println!("device closed: {}", gone.is_ok()));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let adapter = Arc::<Adapter>::default();
    start(&adapter, &Network::from_env()?.hca([127, 0, 0, 1])?);
    stop(&adapter);
    Ok(())
}
