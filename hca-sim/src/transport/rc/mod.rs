//! stub
use super::*;
pub(crate) struct Rc;
impl Rc {
    pub(crate) fn new(_: &QpCap) -> Result<Self, verbs_core::Error> {
        Ok(Rc)
    }
    pub(crate) fn reset(&mut self) {}
    pub(crate) fn is_drained(&self) -> bool {
        true
    }
    pub(crate) fn receive(&mut self, _: &Ends<'_>, _: &Head, _: &[u8], _: &mut Notes) {}
    pub(crate) fn deadline(&self) -> Option<Instant> {
        None
    }
    pub(crate) fn expire(&mut self, _: &Ends<'_>, _: &mut Notes) {}
    pub(crate) fn transmit(&mut self, _: &Ends<'_>, _: &mut dyn Outlet, _: &mut Notes) -> bool {
        false
    }
}
