//! What the options put around the link of an HCA: a capture, and around that faults.

use std::path::Path;

use hca_sim::link::pcap::LinkType;
use hca_sim::link::{Faults, Faulty, PacketLink, PerMille, Remarks};
use hca_sim::{Builder, Hca};

use crate::capture::{self, CaptureError, CaptureFile};

/// A capture and faults for a link; by default neither.
#[derive(Debug, Default)]
pub(super) struct Wrapping<'a> {
    /// The file that all packets on the network are written to.
    pub(super) pcap: Option<&'a Path>,
    /// The share of received packets that is lost, and the seed that draws which.
    pub(super) loss: Option<PerMille>,
    pub(super) seed: u64,
}

impl Wrapping<'_> {
    /// An HCA over the wrapped link, and its capture, if there is one: its interface has that name. Each packet that is
    /// lost on purpose has a comment in the capture.
    pub(super) fn over(
        &self,
        link: impl PacketLink + 'static,
        name: &str,
        link_type: LinkType,
    ) -> Result<(Builder, Option<CaptureFile>), CaptureError> {
        let Some(path) = self.pcap else {
            return Ok((self.faulty(link, None), None));
        };
        let (link, capture) = capture::around(link, name, link_type, path)?;
        let remarks = link.remarks();
        Ok((self.faulty(link, Some(remarks)), Some(capture)))
    }

    /// An HCA over a link with the faults, which are told to the capture within it.
    fn faulty(&self, link: impl PacketLink + 'static, remarks: Option<Remarks>) -> Builder {
        let Some(loss) = self.loss else {
            return Hca::over(link);
        };
        let faults = Faults {
            loss: loss.get(),
            ..Faults::NONE
        };
        let faulty = Faulty::new(link, self.seed).receiving(faults);
        Hca::over(faulty.telling(remarks))
    }
}
