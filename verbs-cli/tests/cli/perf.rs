//! `verbs perf` between two processes over RoCE, with both ends this command; peers of perftest are in `ci/peers.d`.

use std::net::Ipv4Addr;

use serde_json::Value;
use verbs_wire::pcap::reader::Capture;

use crate::iwarp::ask;
use crate::run::Place;
use crate::wire::{Background, address, free_port};

/// Runs a test with these options at both ends. Returns what the client and the server report.
fn measure(host: u8, test: &[&str]) -> [Value; 2] {
    let (place, port) = (Place::new(), free_port());
    let common = [&["perf"], test, &["-p", &port, "--json"]].concat();
    let server = Background::start(&place, &common);
    let (host, bind) = (address(host), address(host + 1));
    let client = [&common[..], &[&host, "--bind", &bind]].concat();
    let client = ask(&place, &client).succeeded();
    let server = server.end().succeeded();
    [client, server].map(|text| serde_json::from_str(&text).expect("JSON"))
}

/// Goal: packets have the traffic class that was asked for. Method: a capture at the client, whose server asked for another one.
#[test]
fn packets_have_the_traffic_class() {
    let (place, port) = (Place::new(), free_port());
    let options = |tclass| {
        [
            "perf", "send-lat", "-n", "10", "-p", &port, "--tclass", tclass,
        ]
    };
    let server = Background::start(&place, &options("104"));
    let (host, bind) = (address(16), address(17));
    let client = [
        &options("2")[..],
        &[&host, "--bind", &bind, "--pcap", "pcap"],
    ]
    .concat();
    ask(&place, &client).succeeded();
    server.end().succeeded();
    let capture = Capture::parse("pcap", &place.read("pcap"));
    for (_, ip) in capture.ip_packets() {
        let is_ours = ip[12..16] == bind.parse::<Ipv4Addr>().expect("an address").octets();
        assert_eq!(ip[1], if is_ours { 2 } else { 104 });
    }
    assert!(capture.packets.len() >= 20);
}

/// Goal: requests and answers are measured: each is counted once, on all connections and of all sizes; a rate goes with the
/// times; the server has nothing to show. Method: fewer calls than are under way, more than the queues hold, sizes beyond a
/// packet, one at a time, and a time.
#[test]
fn calls_are_counted_and_timed() {
    for (test, sizes, calls) in [
        (&["rpc", "-n", "20"][..], 1, Some(20)),
        (
            &["rpc", "-n", "1000", "-q", "3", "-t", "7", "-s", "10000"],
            1,
            Some(3000),
        ),
        (
            &["rpc", "-n", "300", "-t", "100", "-r", "10", "-Q", "30"],
            1,
            Some(300),
        ),
        (&["rpc", "-n", "50", "-t", "1", "-s", "1"], 1, Some(50)),
        (&["rpc", "-n", "9", "-a"], 23, Some(9)),
        (&["rpc", "-D", "2", "-f", "0", "-s", "64"], 1, None),
    ] {
        let [client, server] = measure(14, test);
        assert_eq!(server["results"], Value::Array(Vec::new()), "{test:?}");
        let results = client["results"].as_array().expect("a list");
        assert_eq!(results.len(), sizes, "{client}");
        for result in results {
            let number = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{client}"));
            match calls {
                Some(calls) => assert_eq!(result["n_iterations"], calls, "{client}"),
                None => assert!(number("n_iterations") > 100.0, "{client}"),
            }
            let times = ["t_min", "t_typical", "percentile_99", "t_max"].map(number);
            assert!(times[0] > 0.0 && times.is_sorted(), "{client}");
            assert!(number("tps") > 0.0, "{client}");
        }
    }
}
