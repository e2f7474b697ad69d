//! What hosts refuse, by the kernel's own ICMP. Over loopback a report has arrived when the send returns.

use super::*;
use crate::Refusal;
use crate::sys::BATCH_MAX;
use crate::udp::reports::Reports;

/// Sends one packet to that address, which succeeds whatever was reported before.
fn send(link: &mut Udp, dst: IpAddr) -> Vec<u8> {
    let route = route(link, dst);
    let bytes = packets(&route, 1, 100);
    let burst = Burst {
        route,
        segment: bytes.len(),
        bytes: &bytes,
    };
    assert_eq!(link.transmit(&burst), Sent::Gone);
    bytes
}

/// Goal: a refusal names the destination and quotes the packet; because of it, packets to and from other hosts are
/// neither lost nor counted as failed. Method: each send but the first finds a report waiting.
#[test]
fn refusals_are_told_and_cost_no_packet() {
    let (absent, there) = (own(21), own(22));
    let mut link = Udp::bind(&[own(20)]).unwrap();
    let mut peer = Udp::bind(&[there]).unwrap();
    let mut refused = Vec::new();
    for _ in 0..20 {
        let bytes = send(&mut link, absent);
        send(&mut link, there);
        send(&mut peer, own(20));
        refused.push(Refusal {
            dst: absent,
            quoted: bytes[..Refusal::QUOTED_MAX].to_vec(),
        });
    }
    assert_eq!(receive(&mut peer, 20).len(), 20, "what others are sent");
    assert_eq!(receive(&mut link, 20).len(), 20, "what others send");
    // Batches of the error queue.
    for _ in 0..4 {
        assert_eq!(receive(&mut link, 0).len(), 0);
        link.receive(&mut |_| panic!("nothing is left"));
    }
    let told: Vec<_> = std::iter::from_fn(|| link.refusal()).collect();
    assert_eq!(told, refused);
    let counted = link.counters();
    assert_eq!((counted.send_errors, counted.blocked), (0, 0));
    assert_eq!(counted.packets_sent, 40);
    assert_eq!((counted.icmp_errors, counted.port_unreachable), (20, 20));
    assert_eq!(peer.counters().icmp_errors, 0);
}

/// Goal: a link with several sockets receives reports too, and they do not pile up when they are not fetched.
#[test]
fn every_socket_hears_and_reports_are_bounded() {
    let mut link = Udp::bind(&[own(23), own(24)]).unwrap();
    let absent = own(25);
    for _ in 0..40 {
        for src in [own(23), own(24)] {
            let mut route = route(&link, absent);
            route.src = src;
            let bytes = packets(&route, 1, 0);
            let burst = Burst {
                route,
                segment: bytes.len(),
                bytes: &bytes,
            };
            assert_eq!(link.transmit(&burst), Sent::Gone);
        }
        link.receive(&mut |_| panic!("nothing was sent here"));
    }
    for _ in 0..10 {
        link.receive(&mut |_| panic!("nothing was sent here"));
    }
    assert_eq!(link.counters().port_unreachable, 80);
    let told: Vec<_> = std::iter::from_fn(|| link.refusal()).collect();
    assert_eq!(told.len(), 64);
    assert!(told.iter().all(|refusal| refusal.dst == absent));
}

/// Goal: a report ends a wait, and after it was taken in, waits last their full time again.
#[test]
fn a_report_ends_one_wait() {
    let mut link = Udp::bind(&[own(26)]).unwrap();
    let waiter = link.waiter().unwrap();
    let clock = crate::time::Clock::wall();
    let timed = |timeout| {
        let before = clock.now();
        waiter.wait(Some(timeout), true);
        clock.now() - before
    };
    let (short, long) = (
        std::time::Duration::from_millis(5),
        std::time::Duration::from_secs(60),
    );
    for _ in 0..3 {
        send(&mut link, own(27));
        // The next send takes the error, and the report stays.
        send(&mut link, own(27));
        assert!(timed(long) < long);
        link.receive(&mut |_| panic!("nothing was sent here"));
        assert!(timed(short) >= short);
    }
    assert_eq!(link.counters().port_unreachable, 6);
}

/// Goal: reports and time stamps share a queue, and are kept apart: a quoted packet is not mistaken for one that was
/// sent. Method: the packet that is sent looks like a packet with another identification, and its report quotes it.
#[test]
fn an_echo_is_found_among_reports() {
    let (here, absent) = (own(28), own(29));
    let interfaces = Interfaces::read().unwrap();
    let index = interfaces.index(here);
    let mut endpoint = Endpoint::bind(here, index, Discovery::Probe).unwrap();
    let mut slots: Vec<_> = (0..BATCH_MAX).map(|_| Slot::new()).collect();
    let mut reports = Reports::default();
    let route = Route {
        src: here,
        dst: absent,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let mut bytes = [
        0x45, 0, 0, 20, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (at, address) in [(12, here), (16, absent)] {
        if let IpAddr::V4(address) = address {
            bytes[at..at + 4].copy_from_slice(&address.octets());
        }
    }
    for sent in 1..=5 {
        let echo = endpoint
            .send_observed(&route, bytes.len(), &bytes, &mut slots, &mut reports)
            .unwrap();
        assert!(echo.is_none_or(|echo| echo.is_plain()), "{echo:?}");
        let _ = endpoint.receive(&mut slots, &mut reports);
        assert_eq!(reports.port_unreachable, sent);
        assert_eq!(reports.take().map(|refusal| refusal.dst), Some(absent));
    }
}
