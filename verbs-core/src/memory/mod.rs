//! Protection domains, and the memory registered in them: regions, windows, pools.

pub mod fast_reg;
pub mod fmr;
#[expect(
    unsafe_code,
    reason = "registered memory, keys and windows: argued in each file"
)]
pub mod mem;
pub mod mr;
pub mod mw;
pub mod pd;
